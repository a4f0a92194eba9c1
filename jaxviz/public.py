"""The names that `import jaxviz` gives, but for those that the notebook layer is needed for; see `__init__.py`."""

from jax import checkpoint as checkpoint
from jax import closure_convert as closure_convert
from jax import pmap as pmap
from jax import remat as remat
from jax import shard_map as shard_map
from jax.ad_checkpoint import checkpoint_name as checkpoint_name
from jax.custom_derivatives import linear_call as linear_call

from jaxviz.analysis.compare import (
    Comparison as Comparison,
)
from jaxviz.analysis.compare import (
    compare as compare,
)
from jaxviz.analysis.compiled import (
    CompileReport as CompileReport,
)
from jaxviz.analysis.cost import (
    CostReport as CostReport,
)
from jaxviz.analysis.cost import (
    cost as cost,
)
from jaxviz.analysis.counts import (
    Cost as Cost,
)
from jaxviz.analysis.donation_report import (
    DonationReport as DonationReport,
)
from jaxviz.analysis.donation_report import (
    donation as donation,
)
from jaxviz.analysis.find_nan import find_nan as find_nan
from jaxviz.analysis.lint import (
    LintReport as LintReport,
)
from jaxviz.analysis.lint import (
    lint as lint,
)
from jaxviz.analysis.lint_checks import (
    Advice as Advice,
)
from jaxviz.analysis.lint_rules import (
    LINT_RULES as LINT_RULES,
)
from jaxviz.analysis.memory import (
    MemoryTimeline as MemoryTimeline,
)
from jaxviz.analysis.memory import (
    memory as memory,
)
from jaxviz.analysis.nan_report import NanReport as NanReport
from jaxviz.analysis.parts import cost_of as cost_of
from jaxviz.analysis.policies import (
    PolicyReport as PolicyReport,
)
from jaxviz.analysis.policies import (
    policies as policies,
)
from jaxviz.analysis.policy_comparison import (
    PolicyComparison as PolicyComparison,
)
from jaxviz.analysis.policy_comparison import (
    compare_policies as compare_policies,
)
from jaxviz.analysis.profile import (
    Profile as Profile,
)
from jaxviz.analysis.profile import (
    profile as profile,
)
from jaxviz.analysis.recompilations import (
    CompilationReport as CompilationReport,
)
from jaxviz.analysis.recompilations import (
    FunctionCompilations as FunctionCompilations,
)
from jaxviz.analysis.recompilations import (
    explain_recompile as explain_recompile,
)
from jaxviz.analysis.recompilations import (
    watch_compilations as watch_compilations,
)
from jaxviz.analysis.remat_plan import (
    RematPlan as RematPlan,
)
from jaxviz.analysis.remat_plan import (
    plan_remat as plan_remat,
)
from jaxviz.analysis.residuals import (
    Residual as Residual,
)
from jaxviz.analysis.residuals import (
    ResidualSet as ResidualSet,
)
from jaxviz.analysis.residuals import (
    residuals as residuals,
)
from jaxviz.analysis.series import (
    Series as Series,
)
from jaxviz.analysis.watching import (
    Watch as Watch,
)
from jaxviz.analysis.watching import (
    watch as watch,
)
from jaxviz.api import (
    grad as grad,
)
from jaxviz.api import (
    jvp as jvp,
)
from jaxviz.api import (
    linear_transpose as linear_transpose,
)
from jaxviz.api import (
    linearize as linearize,
)
from jaxviz.api import (
    value_and_grad as value_and_grad,
)
from jaxviz.api import (
    vjp as vjp,
)
from jaxviz.api import (
    vmap as vmap,
)
from jaxviz.custom_rules import (
    custom_gradient as custom_gradient,
)
from jaxviz.custom_rules import (
    custom_jvp as custom_jvp,
)
from jaxviz.custom_rules import (
    custom_vjp as custom_vjp,
)
from jaxviz.derivation import (
    Check as Check,
)
from jaxviz.derivation import (
    Derivation as Derivation,
)
from jaxviz.derivation import (
    clear_caches as clear_caches,
)
from jaxviz.derivation import (
    derive as derive,
)
from jaxviz.doctor import DoctorReport as DoctorReport
from jaxviz.doctor import doctor as doctor
from jaxviz.ir.errors import (
    EquationError as EquationError,
)
from jaxviz.ir.errors import (
    ForwardModeError as ForwardModeError,
)
from jaxviz.ir.errors import (
    JaxvizError as JaxvizError,
)
from jaxviz.ir.errors import (
    NoRuleError as NoRuleError,
)
from jaxviz.ir.errors import (
    ProgramTypeError as ProgramTypeError,
)
from jaxviz.ir.errors import (
    ReverseModeError as ReverseModeError,
)
from jaxviz.ir.errors import (
    UnsupportedJaxError as UnsupportedJaxError,
)
from jaxviz.ir.syntax import Equation as Equation
from jaxviz.ir.syntax import Program as Program
from jaxviz.jacobians import hessian as hessian
from jaxviz.jacobians import jacfwd as jacfwd
from jaxviz.jacobians import jacrev as jacrev
from jaxviz.jit import (
    jit as jit,
)
from jaxviz.progress import show_progress as show_progress
from jaxviz.rule_check import (
    RuleCheck as RuleCheck,
)
from jaxviz.rule_check import (
    check_rule as check_rule,
)
from jaxviz.runtime.breakpoints import (
    Breakpoint as Breakpoint,
)
from jaxviz.runtime.cache import (
    CacheInfo as CacheInfo,
)
from jaxviz.runtime.cache import (
    cache_info as cache_info,
)
from jaxviz.runtime.donated import donated_to as donated_to
from jaxviz.runtime.donated import watch_donations as watch_donations
from jaxviz.runtime.positions import (
    Position as Position,
)
from jaxviz.runtime.positions import (
    SteppingError as SteppingError,
)
from jaxviz.runtime.probes import (
    probe as probe,
)
from jaxviz.stepper.start import (
    step as step,
)
from jaxviz.stepper.stepper import (
    Stepper as Stepper,
)
from jaxviz.trace import trace as trace
