//! Rewrites a parsed template so that every operation that can create large values goes through `limits.rs`.
//!
//! The engine counts steps, but one step may repeat a text a billion times. Therefore the syntax tree is
//! copied, and operators, slices, filters, tests, calls, lists and output become calls of functions that
//! count the bytes they create. The names of these functions begin with a space, so no template can define
//! them. The engine folds constants at compile time, but a call is not a constant, so compiling computes
//! nothing. This module does not know the limits themselves.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use minijinja::machinery::{Span, ast};
use minijinja::{Error, ErrorKind, Value};

/// The variable that holds the text of a `{% filter %}` block.
const CAPTURED: &str = " captured";

type Result<T> = std::result::Result<T, Error>;

/// Rewrites a statement with everything below it.
pub(super) fn statement(from: &ast::Stmt<'_>) -> Result<ast::Stmt<'static>> {
    use ast::Stmt;

    Ok(match from {
        Stmt::Template(node) => {
            Stmt::Template(at(node.span(), ast::Template { children: statements(&node.children)? }))
        }
        Stmt::EmitExpr(node) => emit(node.span(), expression(&node.expr)?),
        // Emitted as a constant expression, so that the output is counted.
        Stmt::EmitRaw(node) => emit(node.span(), constant(node.span(), node.raw)),
        Stmt::ForLoop(node) => Stmt::ForLoop(at(node.span(), for_loop(node)?)),
        Stmt::IfCond(node) => {
            let new = ast::IfCond {
                expr: expression(&node.expr)?,
                true_body: statements(&node.true_body)?,
                false_body: statements(&node.false_body)?,
            };
            Stmt::IfCond(at(node.span(), new))
        }
        Stmt::WithBlock(node) => {
            let pair = |(target, value): &(_, _)| Ok((assigned(target)?, expression(value)?));
            let assignments = node.assignments.iter().map(pair).collect::<Result<_>>()?;
            Stmt::WithBlock(at(node.span(), ast::WithBlock { assignments, body: statements(&node.body)? }))
        }
        Stmt::Set(node) => set(node.span(), &node.target, expression(&node.expr)?)?,
        Stmt::SetBlock(node) => capture(node)?,
        Stmt::AutoEscape(node) => {
            let new = ast::AutoEscape { enabled: expression(&node.enabled)?, body: statements(&node.body)? };
            Stmt::AutoEscape(at(node.span(), new))
        }
        Stmt::FilterBlock(node) => {
            let span = node.span();
            let captured = ast::SetBlock {
                target: variable(span, CAPTURED),
                filter: None,
                body: statements(&node.body)?,
            };
            let shown = emit(span, filtered(&node.filter, span)?);
            let body = vec![Stmt::SetBlock(at(span, captured)), shown];
            Stmt::WithBlock(at(span, ast::WithBlock { assignments: Vec::new(), body }))
        }
        Stmt::Macro(node) => Stmt::Macro(at(node.span(), macro_declaration(node)?)),
        Stmt::CallBlock(node) => {
            let call_expr_span = node.call_expr_span;
            let macro_decl = at(node.macro_decl.span(), macro_declaration(&node.macro_decl)?);
            let call = at(node.call.span(), plain_call(&node.call)?);
            Stmt::CallBlock(at(node.span(), ast::CallBlock { call, macro_decl, call_expr_span }))
        }
        Stmt::Do(node) => {
            Stmt::Do(at(node.span(), ast::Do { call: at(node.span(), plain_call(&node.call)?) }))
        }
        Stmt::Continue(node) => Stmt::Continue(at(node.span(), ast::Continue)),
        Stmt::Break(node) => Stmt::Break(at(node.span(), ast::Break)),
        Stmt::Block(_) | Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err(unsupported("blocks and other templates: a chat template is one text"));
        }
    })
}

fn statements(from: &[ast::Stmt<'_>]) -> Result<Vec<ast::Stmt<'static>>> {
    from.iter().map(statement).collect()
}

fn for_loop(node: &ast::ForLoop<'_>) -> Result<ast::ForLoop<'static>> {
    Ok(ast::ForLoop {
        target: assigned(&node.target)?,
        iter: counted(expression(&node.iter)?),
        filter_expr: node.filter_expr.as_ref().map(expression).transpose()?,
        recursive: node.recursive,
        body: statements(&node.body)?,
        else_body: statements(&node.else_body)?,
    })
}

fn macro_declaration(node: &ast::Macro<'_>) -> Result<ast::Macro<'static>> {
    Ok(ast::Macro {
        name: owned(node.name),
        args: node.args.iter().map(assigned).collect::<Result<_>>()?,
        defaults: node.defaults.iter().map(expression).collect::<Result<_>>()?,
        body: statements(&node.body)?,
    })
}

/// `{% set x %}...{% endset %}`, with an optional filter.
fn capture(node: &ast::Spanned<ast::SetBlock<'_>>) -> Result<ast::Stmt<'static>> {
    let span = node.span();
    let block = |target, body| ast::Stmt::SetBlock(at(span, ast::SetBlock { target, filter: None, body }));
    let body = statements(&node.body)?;
    let Some(filter) = &node.filter else { return Ok(block(assigned(&node.target)?, body)) };
    // Assignments inside `if true` remain visible after it.
    let true_body =
        vec![block(variable(span, CAPTURED), body), set(span, &node.target, filtered(filter, span)?)?];
    let new = ast::IfCond { expr: constant(span, true), true_body, false_body: Vec::new() };
    Ok(ast::Stmt::IfCond(at(span, new)))
}

fn set(span: Span, target: &ast::Expr<'_>, value: ast::Expr<'static>) -> Result<ast::Stmt<'static>> {
    // Values in a namespace outlive their loop, so their nesting depth is checked.
    let value =
        if matches!(target, ast::Expr::GetAttr(_)) { call(span, " keep", vec![value]) } else { value };
    Ok(ast::Stmt::Set(at(span, ast::Set { target: assigned(target)?, expr: value })))
}

/// Rewrites the left side of an assignment, which is not evaluated.
fn assigned(from: &ast::Expr<'_>) -> Result<ast::Expr<'static>> {
    use ast::Expr;
    Ok(match from {
        Expr::Var(node) => variable(node.span(), node.id),
        Expr::GetAttr(node) => Expr::GetAttr(at(
            node.span(),
            ast::GetAttr { expr: assigned(&node.expr)?, name: owned(node.name) },
        )),
        Expr::List(node) => {
            let items = node.items.iter().map(assigned).collect::<Result<_>>()?;
            Expr::List(at(node.span(), ast::List { items }))
        }
        Expr::Tuple(node) => {
            let items = node.items.iter().map(assigned).collect::<Result<_>>()?;
            Expr::Tuple(at(node.span(), ast::Tuple { items }))
        }
        other => return Err(unsupported(&format!("an assignment to a {}", other.description()))),
    })
}

/// Rewrites an expression with everything below it.
fn expression(from: &ast::Expr<'_>) -> Result<ast::Expr<'static>> {
    use ast::Expr;
    let span = from.span();

    Ok(match from {
        Expr::Var(node) => variable(span, node.id),
        Expr::Const(node) => constant(span, node.value.clone()),
        Expr::Slice(node) => {
            let bound =
                |bound: &Option<Expr<'_>>| bound.as_ref().map_or_else(|| Ok(constant(span, ())), expression);
            let bounds = [bound(&node.start)?, bound(&node.stop)?, bound(&node.step)?];
            call(span, " slice", [expression(&node.expr)?].into_iter().chain(bounds).collect())
        }
        Expr::UnaryOp(node) => match node.op {
            ast::UnaryOpKind::Not => not(span, expression(&node.expr)?),
            ast::UnaryOpKind::Neg => {
                let (op, expr) = (ast::UnaryOpKind::Neg, expression(&node.expr)?);
                Expr::UnaryOp(at(span, ast::UnaryOp { op, expr }))
            }
        },
        Expr::BinOp(node) => binary(span, node.op, expression(&node.left)?, expression(&node.right)?),
        Expr::Compare(node) => comparison(span, node)?,
        Expr::IfExpr(node) => {
            let new = ast::IfExpr {
                test_expr: expression(&node.test_expr)?,
                true_expr: expression(&node.true_expr)?,
                false_expr: node.false_expr.as_ref().map(expression).transpose()?,
            };
            Expr::IfExpr(at(span, new))
        }
        Expr::Filter(node) => {
            let base = node.expr.as_ref().ok_or_else(|| unsupported("a filter of nothing"))?;
            named(span, " filter", node.name, expression(base)?, &node.args)?
        }
        Expr::Test(node) => named(span, " test", node.name, expression(&node.expr)?, &node.args)?,
        Expr::GetAttr(node) => {
            Expr::GetAttr(at(span, ast::GetAttr { expr: expression(&node.expr)?, name: owned(node.name) }))
        }
        Expr::GetItem(node) => {
            let (expr, subscript_expr) = (expression(&node.expr)?, expression(&node.subscript_expr)?);
            Expr::GetItem(at(span, ast::GetItem { expr, subscript_expr }))
        }
        Expr::Call(node) => counted(Expr::Call(at(span, plain_call(node)?))),
        Expr::List(node) => {
            let items = node.items.iter().map(expression).collect::<Result<_>>()?;
            counted(Expr::List(at(span, ast::List { items })))
        }
        Expr::Tuple(node) => {
            let items = node.items.iter().map(expression).collect::<Result<_>>()?;
            counted(Expr::Tuple(at(span, ast::Tuple { items })))
        }
        Expr::Map(node) => {
            let keys = node.keys.iter().map(expression).collect::<Result<_>>()?;
            let values = node.values.iter().map(expression).collect::<Result<_>>()?;
            counted(Expr::Map(at(span, ast::Map { keys, values })))
        }
    })
}

fn binary(
    span: Span,
    op: ast::BinOpKind,
    left: ast::Expr<'static>,
    right: ast::Expr<'static>,
) -> ast::Expr<'static> {
    use ast::BinOpKind as Op;
    let name = match op {
        Op::Add => " add",
        Op::Mul => " multiply",
        Op::Concat => " concatenate",
        Op::Eq => " ==",
        Op::Ne => " !=",
        Op::Lt => " <",
        Op::Lte => " <=",
        Op::Gt => " >",
        Op::Gte => " >=",
        Op::In => " in",
        // These operators accept only numbers or select one of their operands, so they create nothing large.
        Op::ScAnd | Op::ScOr | Op::Sub | Op::Div | Op::FloorDiv | Op::Rem | Op::Pow => {
            return ast::Expr::BinOp(at(span, ast::BinOp { op, left, right }));
        }
    };
    call(span, name, vec![left, right])
}

/// Rewrites `a < b < c` to `a < b and b < c`.
fn comparison(span: Span, node: &ast::Compare<'_>) -> Result<ast::Expr<'static>> {
    use ast::CompareOpKind as Op;
    let mut left = &node.expr;
    let mut whole: Option<ast::Expr<'static>> = None;

    for step in &node.ops {
        let (name, negated) = match step.op {
            Op::Eq => (" ==", false),
            Op::Ne => (" !=", false),
            Op::Lt => (" <", false),
            Op::Lte => (" <=", false),
            Op::Gt => (" >", false),
            Op::Gte => (" >=", false),
            Op::In => (" in", false),
            Op::NotIn => (" in", true),
        };

        let mut part = call(span, name, vec![expression(left)?, expression(&step.expr)?]);
        if negated {
            part = not(span, part);
        }

        whole = Some(match whole {
            Some(before) => binary(span, ast::BinOpKind::ScAnd, before, part),
            None => part,
        });

        left = &step.expr;
    }

    whole.map_or_else(|| expression(left), Ok)
}

/// Rewrites the arguments of a call. A method call becomes a function call.
fn plain_call(node: &ast::Spanned<ast::Call<'_>>) -> Result<ast::Call<'static>> {
    let args = arguments(&node.args)?;
    Ok(match &node.expr {
        ast::Expr::Var(name) => ast::Call { expr: variable(name.span(), name.id), args },
        ast::Expr::GetAttr(attribute) => {
            let head = [expression(&attribute.expr)?, constant(attribute.span(), attribute.name)];
            let args = head.into_iter().map(ast::CallArg::Pos).chain(args).collect();
            ast::Call { expr: variable(node.span(), " method"), args }
        }
        other => ast::Call { expr: expression(other)?, args },
    })
}

/// Rewrites the filters of a `{% filter %}` block. They apply to the text of the block.
fn filtered(from: &ast::Expr<'_>, span: Span) -> Result<ast::Expr<'static>> {
    let ast::Expr::Filter(node) = from else { return Err(unsupported("a filter block without a filter")) };
    let base = match &node.expr {
        Some(before) => filtered(before, span)?,
        None => variable(span, CAPTURED),
    };
    named(span, " filter", node.name, base, &node.args)
}

/// A call of the filter or test `name`.
fn named(
    span: Span,
    function: &'static str,
    name: &str,
    base: ast::Expr<'static>,
    args: &[ast::CallArg<'_>],
) -> Result<ast::Expr<'static>> {
    let head = [base, constant(span, name)].into_iter().map(ast::CallArg::Pos);
    let args = head.chain(arguments(args)?).collect();
    Ok(ast::Expr::Call(at(span, ast::Call { expr: variable(span, function), args })))
}

fn arguments(from: &[ast::CallArg<'_>]) -> Result<Vec<ast::CallArg<'static>>> {
    let argument = |arg: &ast::CallArg<'_>| match arg {
        ast::CallArg::Pos(value) => Ok(ast::CallArg::Pos(expression(value)?)),
        ast::CallArg::Kwarg(name, value) => Ok(ast::CallArg::Kwarg(owned(name), expression(value)?)),
        ast::CallArg::PosSplat(_) | ast::CallArg::KwargSplat(_) => {
            Err(unsupported("arguments given with * or **: write them out"))
        }
    };
    from.iter().map(argument).collect()
}

/// Wraps a value in a call that counts it and turns a lazy list into a real one.
fn counted(value: ast::Expr<'static>) -> ast::Expr<'static> {
    call(value.span(), " keep", vec![value])
}

fn call(span: Span, name: &'static str, args: Vec<ast::Expr<'static>>) -> ast::Expr<'static> {
    let args = args.into_iter().map(ast::CallArg::Pos).collect();
    ast::Expr::Call(at(span, ast::Call { expr: variable(span, name), args }))
}

fn not(span: Span, expr: ast::Expr<'static>) -> ast::Expr<'static> {
    ast::Expr::UnaryOp(at(span, ast::UnaryOp { op: ast::UnaryOpKind::Not, expr }))
}

fn emit(span: Span, expr: ast::Expr<'static>) -> ast::Stmt<'static> {
    ast::Stmt::EmitExpr(at(span, ast::EmitExpr { expr }))
}

fn variable(span: Span, id: &str) -> ast::Expr<'static> {
    ast::Expr::Var(at(span, ast::Var { id: owned(id) }))
}

fn constant(span: Span, value: impl Into<Value>) -> ast::Expr<'static> {
    ast::Expr::Const(at(span, ast::Const { value: value.into() }))
}

/// Interns a name for the life of the program, so that the rewritten tree does not borrow from its source.
/// Each name is stored once.
fn owned(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

fn at<T>(span: Span, node: T) -> ast::Spanned<T> {
    ast::Spanned::new(node, span)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("a chat template cannot use {what}"))
}
