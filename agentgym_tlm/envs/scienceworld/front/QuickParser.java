package agentgym_tlm;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import language.model.ActionExprOR;
import language.model.ActionRequestDef;
import language.model.ActionTrigger;
import scala.Option;
import scala.Tuple2;
import scala.Tuple4;
import scala.collection.Iterator;
import scienceworld.actions.Action;
import scienceworld.input.InputParser;
import scienceworld.objects.agent.Agent;
import scienceworld.struct.EnvObject;
import scienceworld.tasks.goals.GoalSequence;
import scienceworld.tasks.goals.ObjMonitor;

/**
 * Reads actions as ScienceWorld's parser does, to the letter, without most of its work, which is most of a step's.
 *
 * <ol>
 *   <li>All things in the world are listed only for actions that may name any of them (teleport).
 *   <li>The names of things are listed once for an action, not once for every form that the action might have.
 *   <li>The words of a name are told apart once for all, and only things that are named are looked at further.
 * </ol>
 */
public class QuickParser extends InputParser {
    private static final int MOST_NAMES = 20_000;

    /** Names as the simulator writes them, and as they are compared with what was typed. Used by one thread only. */
    private static final Map<String, String> COMPARABLE = new HashMap<>();

    private final List<ActionTrigger> oracular = new ArrayList<>();
    private EnvObject[] things;
    private EnvObject place;
    private String[][] names;

    public QuickParser(ActionRequestDef[] actions) {
        super(actions);
        for (ActionRequestDef action : actions) {
            Iterator<ActionTrigger> triggers = action.triggers().iterator();
            while (action.isOracleAction() && triggers.hasNext()) {
                oracular.add(triggers.next());
            }
        }
    }

    @Override
    public Tuple4<Object, String, String, Option<Action>> parse(
            String input, EnvObject visible, EnvObject universe, Agent agent, ObjMonitor monitor, GoalSequence goals,
            EnvObject container) {
        try {
            return super.parse(
                    input, visible, mayNameAnything(input) ? universe : agent, agent, monitor, goals, container);
        } finally {
            things = null;
            place = null;
            names = null;
        }
    }

    @Override
    public Tuple2<Object, Tuple2<String, EnvObject>[]> matchObj(String input, EnvObject[] all, EnvObject container) {
        if (all != things || container != place) {
            things = all;
            place = container;
            names = new String[all.length][];
            for (int i = 0; i < all.length; i++) {
                names[i] = comparable(all[i].getReferentsWithContainers(container).iterator());
            }
        }
        List<EnvObject> named = new ArrayList<>();
        for (int i = 0; i < all.length; i++) {
            for (String name : names[i]) {
                if (input.startsWith(name)) {
                    named.add(all[i]);
                    break;
                }
            }
        }
        return super.matchObj(input, named.toArray(new EnvObject[0]), container);
    }

    private boolean mayNameAnything(String input) {
        String typed = String.join(" ", tokenize(input.toLowerCase()));
        for (ActionTrigger trigger : oracular) {
            if (trigger.pattern().isEmpty() || !(trigger.pattern().head() instanceof ActionExprOR)) {
                return true;
            }
            Iterator<String> words = ((ActionExprOR) trigger.pattern().head()).orElements().iterator();
            while (words.hasNext()) {
                if (typed.startsWith(words.next())) {
                    return true;
                }
            }
        }
        return false;
    }

    private static String[] comparable(Iterator<String> written) {
        List<String> names = new ArrayList<>();
        while (written.hasNext()) {
            String name = written.next();
            String comparable = COMPARABLE.get(name);
            if (comparable == null) {
                if (COMPARABLE.size() == MOST_NAMES) {
                    COMPARABLE.clear();
                }
                comparable = String.join(" ", tokenize(name.toLowerCase()));
                COMPARABLE.put(name, comparable);
            }
            names.add(comparable);
        }
        return names.toArray(new String[0]);
    }
}
