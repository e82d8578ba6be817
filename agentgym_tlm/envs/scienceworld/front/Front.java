package agentgym_tlm;

import java.lang.reflect.Field;
import scala.Tuple2;
import scienceworld.runtime.AgentInterface;
import scienceworld.runtime.pythonapi.PythonInterface;

/** ScienceWorld's front for other languages, whose worlds read actions with {@link QuickParser}. */
public class Front extends PythonInterface {
    public Front() {
        taskMaker_$eq(null);
    }

    /** Loads a task, and forgets the list of all variations of all tasks, 10 MB, which every load makes anew. */
    public String load(String task, int variation, String simplifications) throws ReflectiveOperationException {
        try {
            return loadQuick(task, variation, simplifications);
        } finally {
            taskMaker_$eq(null);
        }
    }

    /** What the simulator's expert would do, a line each; it plays in the world loaded for it, which is of no use then. */
    public String goldPath(String task, int variation, String simplifications) throws ReflectiveOperationException {
        try {
            String error = loadQuick(task, variation, simplifications);
            if (error.isEmpty()) {
                Tuple2<String[], String> path = taskMaker().createGoldActions(task, variation, this);
                if (path._2().isEmpty()) {
                    return String.join("\n", path._1());
                }
                error = path._2();
            }
            throw new IllegalStateException(error);
        } finally {
            taskMaker_$eq(null);
        }
    }

    private String loadQuick(String task, int variation, String simplifications) throws ReflectiveOperationException {
        String error = super.load(task, variation, simplifications, false);
        if (error.isEmpty()) {
            AgentInterface world = agentInterface().get();
            Field parser = AgentInterface.class.getDeclaredField("inputParser");
            parser.setAccessible(true);
            parser.set(world, new QuickParser(world.actionHandler().getActions()));
        }
        return error;
    }
}
