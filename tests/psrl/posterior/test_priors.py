import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.posterior.priors import Beta, Dirichlet, Independent, UniformOver, parse_prior

COUNTS = st.floats(1e-6, 1e9)
NAMES = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9 :.]{0,8}[A-Za-z0-9])?", fullmatch=True)
SETS = st.lists(NAMES, min_size=1, max_size=5, unique=True)
BETAS = st.builds(Beta, COUNTS, COUNTS)
DIRICHLETS = SETS.flatmap(lambda names: st.builds(Dirichlet, st.just(tuple(names)), st.tuples(*[COUNTS] * len(names))))
SINGLES = st.one_of(BETAS, DIRICHLETS, SETS.map(lambda names: UniformOver(tuple(names))))


@pytest.mark.thorough
@given(st.one_of(SINGLES, st.dictionaries(NAMES, SINGLES, min_size=1, max_size=4).map(Independent)))
def test_a_prior_s_text_is_read_back(prior):
    assert parse_prior(str(prior)) == prior
    assert parse_prior(f"\n  {prior!s}  \n\n") == prior


@pytest.mark.parametrize(
    "text",
    ["", "I do not know.", "mean: Beta(1)", "Beta(1, x)", "Beta(0, 1)", "Dirichlet(a 1)", "a: Uniform over {}",
     "a: Beta(1, 1)\na: Beta(2, 1)", "a: Beta(1, 1)\nand that is all", "Uniform over {a, a}"],
)  # fmt: skip
def test_a_text_of_another_form_is_refused(text):
    with pytest.raises(ConfigurationError):
        parse_prior(text)


def test_the_beta_update_is_bayes_rule():
    grid = np.linspace(0, 1, 20_001)[1:-1]
    density = grid ** (2.5 - 1) * (1 - grid) ** (1.5 - 1)
    prior = Beta(2.5, 1.5)
    for reward in (1, 0, 1, 1):
        density *= grid if reward else 1 - grid
        prior = prior.observed(reward)
    assert prior.mean == pytest.approx((grid * density).sum() / density.sum(), abs=1e-6)
    with pytest.raises(ConfigurationError, match=r"reward of 0 or 1, got 0\.5"):
        prior.observed(0.5)


def test_the_dirichlet_update_is_bayes_rule():
    # Weights of prior samples by their likelihood give the posterior's mean.
    rng = np.random.default_rng(0)
    prior = Dirichlet(("a", "b", "c"), (0.5, 1.0, 2.0))
    drawn = rng.dirichlet(prior.counts, 200_000)
    likelihood = drawn[:, 0] ** 2 * drawn[:, 2]
    posterior = prior.observed("a").observed("c").observed("a")
    expected = likelihood @ drawn / likelihood.sum()
    np.testing.assert_allclose(np.array(posterior.counts) / sum(posterior.counts), expected, atol=0.005)
    with pytest.raises(ConfigurationError, match="'d' is not an outcome of the prior: expected one of a, b, c"):
        prior.observed("d")


def test_samples_have_the_distribution_s_moments():
    rng = np.random.default_rng(1)
    beta = np.array([Beta(3, 1).sample(rng) for _ in range(4000)])
    assert abs(beta.mean() - 0.75) < 4 * beta.std() / np.sqrt(4000)
    assert beta.var() == pytest.approx(3 / 80, rel=0.1)  # ab / ((a + b)^2 (a + b + 1))
    chances = [Dirichlet(("x", "y"), (1, 3)).sample(rng)["y"] for _ in range(4000)]
    assert abs(np.mean(chances) - 0.75) < 4 * np.std(chances) / np.sqrt(4000)
    items = [UniformOver(("p", "q", "r")).sample(rng) for _ in range(3000)]
    assert all(abs(items.count(item) - 1000) < 4 * np.sqrt(3000 * 2 / 9) for item in "pqr")


def test_a_set_shrinks_to_what_explains_the_observation():
    codes = UniformOver(("12", "13", "21"))
    assert codes.given(lambda code: "1" in code) is codes
    assert codes.observed("21") == UniformOver(("21",))
    with pytest.raises(ConfigurationError, match="none of the 3 items explains"):
        codes.given(lambda code: code == "99")


def test_unknowns_are_independent():
    prior = Independent({"arm A": Beta(), "leads to": Dirichlet.even(("1", "2")), "earns": UniformOver(("0", "1"))})
    after = prior.observed("arm A", 1).observed("leads to", "2").observed("earns", "0")
    assert str(after) == "arm A: Beta(2, 1)\nleads to: Dirichlet(1: 1, 2: 2)\nearns: Uniform over {0}"
    assert prior.parts["arm A"] == Beta()
    first, again = (after.sample(np.random.default_rng(5)) for _ in range(2))
    assert first == again
    assert list(first) == ["arm A", "leads to", "earns"]
    assert first["earns"] == "0"


@pytest.mark.parametrize(
    "build",
    [lambda: UniformOver(()), lambda: UniformOver(("a,b",)), lambda: Dirichlet(("a",), (1, 2)),
     lambda: Dirichlet(("a",), (float("nan"),)), lambda: Beta(-1, 1), lambda: Independent({" a": Beta()})],
)  # fmt: skip
def test_invalid_parameters_are_refused(build):
    with pytest.raises(ConfigurationError):
        build()
