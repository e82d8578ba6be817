"""PPO: advantages against naive sums, what a step is under each credit, and the critic's clipped loss, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.trainers.groups import Array
from agentgym_tlm.trainers.policy_gradient import clipped_loss
from agentgym_tlm.trainers.ppo import PPOArguments, PPOTrainer, episode_advantages, gae, turn_rewards
from agentgym_tlm.trajectory import Trajectory
from tests.trainers.toys import played, tiny_policy

TURNS = np.array([0, 0, 2, 2, 2])
"""Of an episode's five tokens; nothing of its second turn may be learnt from."""
REWARDS = np.array([0.5, 7.0, 1.0])
VALUES = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
COSTS = np.array([0.01, 0.02, 0.0, 0.03, 0.04])


def ppo(folder: Path, **options: Any) -> PPOTrainer:
    return PPOTrainer(tiny_policy(), EnvArgs(), PPOArguments(output_dir=str(folder), **options))


def naive_gae(rewards: Array, values: Array, gamma: float, lam: float) -> Array:
    """Σ_k (γλ)^k δ_t+k, with a sum of its own for every t."""
    n = len(rewards)
    following = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    return np.array([sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.9, 0.0), (0.0, 0.7)])
def test_gae_is_the_sum_that_it_abbreviates(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 17):
        rewards, values = rng.normal(size=n), rng.normal(size=n)
        np.testing.assert_allclose(gae(rewards, values, gamma, lam), naive_gae(rewards, values, gamma, lam))


def test_gae_between_returns_and_critic() -> None:
    """λ = 1: return less value; λ = 0: the error of one step."""
    rewards = np.array([1.0, 0.0, 2.0])
    np.testing.assert_allclose(gae(rewards, VALUES[:3], 1.0, 1.0), [3 - 0.1, 2 - 0.2, 2 - 0.3])
    np.testing.assert_allclose(gae(rewards, VALUES[:3], 1.0, 0.0), [1 + 0.2 - 0.1, 0.3 - 0.2, 2 - 0.3])


def advantages(**options: Any) -> tuple[Array, Array]:
    return episode_advantages(REWARDS, COSTS, VALUES, TURNS, PPOArguments(**options))


def test_credit_of_tokens() -> None:
    """One chain of five tokens: no observation in between is a step; a turn's reward comes with its last token."""
    found, returns = advantages(credit="token", gamma=0.9, gae_lambda=0.8)
    expected = naive_gae(np.array([0.0, 0.5, 0.0, 0.0, 1.0]) - COSTS, VALUES, 0.9, 0.8)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(returns, expected + VALUES)
    found, _ = advantages(credit="token", gamma=1.0, gae_lambda=1.0)
    paid = 1.5 - COSTS.sum()
    np.testing.assert_allclose(found[0], paid - 0.1)
    np.testing.assert_allclose(found[4], 1.0 - 0.04 - 0.5)


def test_credit_of_turns() -> None:
    """Two steps, valued before their first tokens; all tokens of a turn share its advantage and return."""
    found, returns = advantages(credit="turn", gamma=0.9, gae_lambda=0.8)
    last = 1.0 - 0.07 - 0.3
    first = 0.5 - 0.03 + 0.9 * 0.3 - 0.1 + 0.9 * 0.8 * last
    np.testing.assert_allclose(found, [first] * 2 + [last] * 3)
    np.testing.assert_allclose(returns, [first + 0.1] * 2 + [last + 0.3] * 3)


def test_credit_within_turns() -> None:
    """Every turn is an episode of its own: nothing of the second reaches the first."""
    found, returns = advantages(credit="single_turn", gamma=0.9, gae_lambda=0.8)
    expected = np.concatenate(
        [
            naive_gae(np.array([0.0, 0.5]) - COSTS[:2], VALUES[:2], 0.9, 0.8),
            naive_gae(np.array([0.0, 0.0, 1.0]) - COSTS[2:], VALUES[2:], 0.9, 0.8),
        ]
    )
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(returns, expected + VALUES)


def test_credits_agree_on_one_turn_of_one_token() -> None:
    args = [PPOArguments(credit=credit) for credit in ("token", "turn", "single_turn")]
    one = (np.array([1.0]), np.array([0.1]), np.array([0.4]), np.array([0]))
    assert [episode_advantages(*one, each)[0].tolist() for each in args] == [[pytest.approx(0.5)]] * 3


def test_rewards_of_turns() -> None:
    """Each turn's own; under single_turn the whole return in every turn; the penalty is always the turn's own."""
    episode = played([0.25, 0.0, 0.5], valid=[True, False, True])
    paid = np.array([0.0, 0.1, 0.0])
    found = turn_rewards(episode, paid, PPOArguments(reward_scale=2.0))
    assert found.tolist() == pytest.approx([0.5, -0.1, 1.0])
    found = turn_rewards(episode, paid, PPOArguments(credit="single_turn", reward_scale=2.0))
    assert found.tolist() == pytest.approx([1.5, 1.4, 1.5])


def episodes() -> list[Trajectory]:
    made = [played([0.0, 1.0], lengths=[2, 3]), played([0.0], lengths=[4], valid=[False], seed=1)]
    for each in made:
        for turn in each.turns:
            turn.ref_logprobs = [value + 0.5 for value in turn.logprobs or []]
    return made


def test_divergence_is_paid_token_by_token(tmp_path: Path) -> None:
    """log π_old - log π_ref is -0.5 everywhere, so that with β = 0.2 every token earns 0.1; the critic begins at 0."""
    args = {"beta": 0.2, "gae_lambda": 1.0, "whiten_advantages": False, "invalid_action_penalty": 0.3}
    (tmp_path / "a" / "iteration-0").mkdir(parents=True)
    (tmp_path / "b" / "iteration-0").mkdir(parents=True)
    first, second = ppo(tmp_path / "a", **args).examples(episodes())
    assert first.flat("advantages").tolist() == pytest.approx([1.5, 1.4, 1.3, 1.2, 1.1])
    assert second.flat("advantages").tolist() == pytest.approx([0.1, 0.0, -0.1, -0.2], abs=1e-6)
    trainer = ppo(tmp_path / "b", **args, kl_in="loss")
    first, second = trainer.examples(episodes())
    assert first.flat("returns").tolist() == pytest.approx([1.0] * 5)
    assert second.flat("returns").tolist() == pytest.approx([-0.3] * 4)
    assert trainer.loss_beta == 0.2
    assert not first.flat("old_values").any()


def test_advantages_are_whitened_over_the_iteration(tmp_path: Path) -> None:
    """Over all nine tokens together, not within an episode; returns are not."""
    (tmp_path / "iteration-0").mkdir()
    trainer = ppo(tmp_path, beta=0.0, gae_lambda=1.0)
    values = np.array([1.0] * 5 + [-0.01] * 4)
    found = np.concatenate([example.flat("advantages") for example in trainer.examples(episodes())])
    np.testing.assert_allclose(found, (values - values.mean()) / values.std(), rtol=1e-5)


def test_loss_of_the_critic(tmp_path: Path) -> None:
    """c_V / 2 of the larger squared error, of V and of V held within 0.2 of the old one; beside the policy's loss."""
    trainer = ppo(tmp_path, beta=0.0, vf_coef=3.0, value_clip=0.2, loss_aggregation="token_mean")
    trainer.state.fit_step = 1
    old, returns, values = [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.1, 0.9, 0.9, 1.5]
    squares = [0.81, 0.64, 0.81, 2.25]  # 0.9: held at 0.2, 0.8 off the return; 1.5 is worse than 1.2
    episode = played([0.0], lengths=[4])
    example = Example.from_trajectory(episode)
    batch = collate(
        [example.with_token_values(advantages=np.ones(4), returns=np.array(returns), old_values=np.array(old))]
    )
    new = torch.tensor([-1.0, -1.5, -0.5, -2.0])
    given = torch.tensor(values, requires_grad=True)
    loss, metrics = trainer.loss(torch.stack([new, given]), batch)
    loss.backward()
    policy, _ = clipped_loss(new, batch, epsilon=0.2, dual_clip=3.0)
    assert loss.item() == pytest.approx(policy.item() + 3.0 * sum(squares) / 4 / 2, rel=1e-5)
    assert metrics["value_loss"].item() == pytest.approx(sum(squares) / 8, rel=1e-5)
    assert given.grad is not None
    assert given.grad.tolist() == pytest.approx([3 / 4 * -0.9, 0.0, 3 / 4 * 0.9, 3 / 4 * 1.5], rel=1e-5)
    free = ppo(tmp_path, beta=0.0, vf_coef=3.0, value_clip=None, loss_aggregation="token_mean")
    free.state.fit_step = 1
    loss, _ = free.loss(torch.stack([new, given.detach()]), batch)
    assert loss.item() == pytest.approx(policy.item() + 3.0 * (0.81 + 0.01 + 0.81 + 2.25) / 4 / 2, rel=1e-5)


@pytest.mark.filterwarnings("ignore:the trainer.s log-probs differ")
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_critic_learns_what_to_expect(critic: Any, tmp_path: Path) -> None:
    """Its values reach the returns of episodes that always end alike."""
    trainer = ppo(
        tmp_path,
        critic=critic,
        beta=0.0,
        learning_rate=1e-4,
        critic_learning_rate=3e-2,
        max_steps=40,
        value_clip=None,
        gae_lambda=1.0,
        save_steps=None,
        logging_steps=40,
    )
    trainer.begin()
    (tmp_path / "iteration-0").mkdir()
    trainer.fit([(example,) for example in trainer.examples(episodes())])
    values = trainer._compute_values(trainer.examples(episodes()))
    assert values[0] == pytest.approx([1.0] * 5, abs=0.15)
    assert values[1] == pytest.approx([-0.01] * 4, abs=0.15)
    body = trainer.critic.body
    assert (body is None) == (critic == "shared")
