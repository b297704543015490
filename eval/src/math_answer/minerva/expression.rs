//! The reading of a formula in LaTeX: `parse_latex` of sympy 1.14 (`parsing/latex/LaTeX.g4` and
//! `_parse_latex_antlr.py`), which lm-evaluation-harness calls for `minerva_math`.
//!
//! Its habits are kept, because they decide what is right. The longest beginning of a text that is a formula
//! is read, and the rest is dropped: `2,3` is 2, `x^-1` is x. An operator is part of it only if what follows
//! is a formula too. `(1,2)` is no formula. Every letter is a symbol of its own, `\pi` and `i` and `e` are
//! symbols like any other, `da` is one symbol, and a letter before a parenthesis is a function. `x` between
//! two numbers is a product.
//!
//! Left out are integrals, sums, limits, derivatives, and vectors of physics: a text that begins with one has
//! no expression here. This file does not know when two expressions are equal.

mod token;

pub(super) use token::{BINOMIAL, Function};
use token::{Token, Tokens};

/// An expression as it was written: nothing is simplified.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    /// A number without a sign, in decimal digits.
    Number(Decimal),
    /// A symbol.
    Symbol(String),
    /// A sum.
    Sum(Box<Self>, Box<Self>),
    /// A product.
    Product(Box<Self>, Box<Self>),
    /// A power: base and exponent.
    Power(Box<Self>, Box<Self>),
    /// A known function of one argument.
    Call(Function, Box<Self>),
    /// The logarithm of the first to the base of the second.
    Logarithm(Box<Self>, Box<Self>),
    /// An unknown function.
    Unknown(String, Vec<Self>),
}

/// Digits with some of them behind the point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    /// All digits.
    pub(super) digits: String,
    /// How many of them stand behind the point.
    pub(super) places: usize,
    /// Whether there is a point. sympy computes with such numbers in floating point.
    pub(super) is_float: bool,
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    /// What comes next is not what is looked for; something else may be.
    Mismatch,
    /// The whole text cannot be read.
    Unreadable,
}

type Parsed<T> = Result<T, Problem>;

/// Groups within groups that are looked into. Texts with more are not read.
const DEEPEST: usize = 60;

/// The longest text with an expression, in bytes. sympy would run into the limit of time with longer ones.
const LONGEST: usize = 1000;

/// Attempts to read a part of a text. A text that needs more has no expression: sympy would run into the
/// limit of time.
const MOST_ATTEMPTS: usize = 20_000;

impl Expression {
    /// The expression that a text begins with. `None` without one, and for equations and inequalities.
    pub(super) fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let mut parser = Parser { tokens: Tokens::of(text), place: 0, depth: 0, attempts: 0 };
        let found = parser.sum().ok()?;
        let is_relation = matches!(parser.peek(), Ok(Some(Token::Relation)) | Err(_));
        (!is_relation).then_some(found)
    }

    fn integer(value: u32) -> Self {
        Self::Number(Decimal { digits: value.to_string(), places: 0, is_float: false })
    }

    fn negative(value: Self) -> Self {
        Self::Call(Function::Negative, Box::new(value))
    }

    fn inverse(value: Self) -> Self {
        Self::Power(Box::new(value), Box::new(Self::negative(Self::integer(1))))
    }

    fn times(self, other: Self) -> Self {
        Self::Product(Box::new(self), Box::new(other))
    }

    /// Whether a symbol stands in it.
    pub(super) fn has_symbols(&self) -> bool {
        match self {
            Self::Number(_) => false,
            Self::Symbol(_) => true,
            Self::Sum(left, right)
            | Self::Product(left, right)
            | Self::Power(left, right)
            | Self::Logarithm(left, right) => left.has_symbols() || right.has_symbols(),
            Self::Call(_, argument) => argument.has_symbols(),
            Self::Unknown(_, arguments) => arguments.iter().any(Self::has_symbols),
        }
    }
}

struct Parser {
    tokens: Tokens,
    place: usize,
    depth: usize,
    attempts: usize,
}

impl Parser {
    fn peek(&self) -> Parsed<Option<&Token>> {
        self.tokens.get(self.place).map_err(|()| Problem::Unreadable)
    }

    fn next(&mut self) -> Parsed<Token> {
        let token = self.peek()?.cloned().ok_or(Problem::Mismatch)?;
        self.place += 1;
        Ok(token)
    }

    fn expect(&mut self, wanted: &Token) -> Parsed<()> {
        if self.peek()? == Some(wanted) {
            self.place += 1;
            return Ok(());
        }
        Err(Problem::Mismatch)
    }

    /// Reads a part if it is there, and stays in place if not.
    fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<Option<T>> {
        self.attempts += 1;
        if self.attempts > MOST_ATTEMPTS {
            return Err(Problem::Unreadable);
        }
        let (place, depth) = (self.place, self.depth);
        match read(self) {
            Ok(found) => Ok(Some(found)),
            Err(Problem::Mismatch) => {
                (self.place, self.depth) = (place, depth);
                Ok(None)
            }
            Err(Problem::Unreadable) => Err(Problem::Unreadable),
        }
    }

    /// `additive` of the grammar.
    fn sum(&mut self) -> Parsed<Expression> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Problem::Unreadable);
        }
        let mut left = self.product()?;
        while let Some(right) = self.attempt(|parser| match parser.next()? {
            Token::Add => parser.product(),
            Token::Subtract => parser.product().map(Expression::negative),
            _ => Err(Problem::Mismatch),
        })? {
            left = Expression::Sum(Box::new(left), Box::new(right));
        }
        self.depth -= 1;
        Ok(left)
    }

    /// `mp` of the grammar.
    fn product(&mut self) -> Parsed<Expression> {
        let first = self.signed(true)?;
        self.factors(first, true)
    }

    fn factors(&mut self, first: Expression, with_functions: bool) -> Parsed<Expression> {
        let mut left = first;
        while let Some(right) = self.attempt(|parser| match parser.next()? {
            Token::Multiply => parser.signed(with_functions),
            Token::Divide => parser.signed(with_functions).map(Expression::inverse),
            _ => Err(Problem::Mismatch),
        })? {
            left = left.times(right);
        }
        Ok(left)
    }

    /// `unary` of the grammar. Without functions, only the first factor may be one.
    fn signed(&mut self, with_functions: bool) -> Parsed<Expression> {
        let mut is_negative = false;
        while let Some(sign @ (Token::Add | Token::Subtract)) = self.peek()? {
            is_negative ^= *sign == Token::Subtract;
            self.place += 1;
        }
        let mut factors = vec![self.postfix(true)?];
        while let Some(factor) = self.attempt(|parser| parser.postfix(with_functions))? {
            factors.push(factor);
        }
        let product = juxtaposed(&factors);
        Ok(if is_negative { Expression::negative(product) } else { product })
    }

    /// A power with its factorials.
    fn postfix(&mut self, with_functions: bool) -> Parsed<Expression> {
        let mut found = self.part(with_functions)?;
        while let Some(exponent) = self.attempt(Self::exponent)? {
            found = Expression::Power(Box::new(found), Box::new(exponent));
        }
        while self.attempt(|parser| parser.expect(&Token::Factorial))?.is_some() {
            found = Expression::Call(Function::Factorial, Box::new(found));
        }
        Ok(found)
    }

    fn exponent(&mut self) -> Parsed<Expression> {
        self.expect(&Token::Caret)?;
        let exponent = self.atom_or_group()?;
        // The grammar takes an index of the exponent, and sympy drops it.
        self.attempt(Self::index)?;
        Ok(exponent)
    }

    fn index(&mut self) -> Parsed<Expression> {
        self.expect(&Token::Underscore)?;
        self.atom_or_group()
    }

    fn atom_or_group(&mut self) -> Parsed<Expression> {
        match self.attempt(Self::atom)? {
            Some(atom) => Ok(atom),
            None => self.group(&Token::OpenBrace, &Token::CloseBrace),
        }
    }

    fn group(&mut self, open: &Token, close: &Token) -> Parsed<Expression> {
        self.expect(open)?;
        let inside = self.sum()?;
        self.expect(close)?;
        Ok(inside)
    }

    /// `comp` of the grammar.
    fn part(&mut self, with_functions: bool) -> Parsed<Expression> {
        let enclosed = |function: Function| move |inside| Expression::Call(function, Box::new(inside));
        match self.peek()? {
            Some(Token::OpenParenthesis) => self.group(&Token::OpenParenthesis, &Token::CloseParenthesis),
            Some(Token::OpenBracket) => self.group(&Token::OpenBracket, &Token::CloseBracket),
            Some(Token::OpenBrace) => self.group(&Token::OpenBrace, &Token::CloseBrace),
            Some(Token::OpenSet) => self.group(&Token::OpenSet, &Token::CloseSet),
            Some(Token::Bar) => self.group(&Token::Bar, &Token::Bar).map(enclosed(Function::Absolute)),
            Some(Token::OpenFloor) => {
                self.group(&Token::OpenFloor, &Token::CloseFloor).map(enclosed(Function::Floor))
            }
            Some(Token::OpenCeiling) => {
                self.group(&Token::OpenCeiling, &Token::CloseCeiling).map(enclosed(Function::Ceiling))
            }
            Some(Token::Unsupported) => Err(Problem::Unreadable),
            _ if with_functions => match self.attempt(Self::call)? {
                Some(call) => Ok(call),
                None => self.atom(),
            },
            _ => self.atom(),
        }
    }

    /// `func` of the grammar.
    fn call(&mut self) -> Parsed<Expression> {
        match self.next()? {
            Token::Function(function) => self.known_call(function),
            Token::Root => {
                let degree =
                    self.attempt(|parser| parser.group(&Token::OpenBracket, &Token::CloseBracket))?;
                let base = self.group(&Token::OpenBrace, &Token::CloseBrace)?;
                let exponent = Expression::inverse(degree.unwrap_or_else(|| Expression::integer(2)));
                Ok(Expression::Power(Box::new(base), Box::new(exponent)))
            }
            Token::Overline => {
                let base = self.group(&Token::OpenBrace, &Token::CloseBrace)?;
                Ok(Expression::Call(Function::Conjugate, Box::new(base)))
            }
            Token::Symbol(name) => {
                let name = self.with_index(&name)?;
                self.expect(&Token::OpenParenthesis)?;
                Ok(Expression::Unknown(name, self.arguments()?))
            }
            _ => Err(Problem::Mismatch),
        }
    }

    /// The arguments of a function up to the closing parenthesis.
    fn arguments(&mut self) -> Parsed<Vec<Expression>> {
        let mut arguments = vec![self.sum()?];
        loop {
            match self.next()? {
                Token::Comma => arguments.push(self.sum()?),
                Token::CloseParenthesis => return Ok(arguments),
                _ => return Err(Problem::Mismatch),
            }
        }
    }

    /// A function with a name of its own, such as `\sin^2 x` and `\log_2(8)`. In `\log_28`, all digits are
    /// the base only if an argument follows them; otherwise the first one is.
    fn known_call(&mut self, function: Function) -> Parsed<Expression> {
        match self.attempt(|parser| parser.known_call_with(function, Self::index))? {
            Some(call) => Ok(call),
            None => self.known_call_with(function, Self::digit_index),
        }
    }

    fn digit_index(&mut self) -> Parsed<Expression> {
        self.expect(&Token::Underscore)?;
        match self.next()? {
            Token::Digit(digit) => Ok(Expression::integer(digit.to_digit(10).ok_or(Problem::Mismatch)?)),
            _ => Err(Problem::Mismatch),
        }
    }

    fn known_call_with(
        &mut self,
        function: Function,
        index: fn(&mut Self) -> Parsed<Expression>,
    ) -> Parsed<Expression> {
        let mut base = self.attempt(index)?;
        let power = self.attempt(Self::exponent)?;
        if base.is_none() {
            base = self.attempt(index)?;
        }
        let in_parentheses = self.attempt(|parser| {
            parser.expect(&Token::OpenParenthesis)?;
            Ok(parser.arguments()?.remove(0))
        })?;
        let argument = if let Some(argument) = in_parentheses {
            argument
        } else {
            let first = self.signed(false)?;
            self.factors(first, false)?
        };
        let call = match (function, base) {
            (Function::Logarithm, Some(base)) => Expression::Logarithm(Box::new(argument), Box::new(base)),
            (Function::Logarithm10, base) => {
                let base = base.unwrap_or_else(|| Expression::integer(10));
                Expression::Logarithm(Box::new(argument), Box::new(base))
            }
            (function, _) => Expression::Call(function, Box::new(argument)),
        };
        let minus_one = Expression::negative(Expression::integer(1));
        match (power, function.inverse()) {
            (Some(power), Some(inverse)) if power == minus_one => {
                let Expression::Call(_, argument) = call else { return Err(Problem::Unreadable) };
                Ok(Expression::Call(inverse, argument))
            }
            (Some(power), _) => Ok(Expression::Power(Box::new(call), Box::new(power))),
            (None, _) => Ok(call),
        }
    }

    /// `atom` of the grammar.
    fn atom(&mut self) -> Parsed<Expression> {
        match self.next()? {
            Token::Symbol(name) => Ok(Expression::Symbol(self.with_index(&name)?)),
            Token::Differential(name) => Ok(Expression::Symbol(format!("d{name}"))),
            Token::Digit(digit) => self.number(digit),
            Token::Fraction => self.fraction(),
            Token::Binomial => {
                let n = self.group(&Token::OpenBrace, &Token::CloseBrace)?;
                let k = self.group(&Token::OpenBrace, &Token::CloseBrace)?;
                Ok(Expression::Unknown(BINOMIAL.to_owned(), vec![n, k]))
            }
            Token::Unsupported => Err(Problem::Unreadable),
            _ => Err(Problem::Mismatch),
        }
    }

    /// The name of a symbol with its index and its primes.
    fn with_index(&mut self, name: &str) -> Parsed<String> {
        let primes = self.primes()?;
        let index = match self.peek()? {
            Some(Token::Underscore) => format!("_{{{:?}}}", self.index()?),
            _ => String::new(),
        };
        let primes = if primes.is_empty() { self.primes()? } else { primes };
        Ok(format!("{name}{index}{primes}"))
    }

    fn primes(&mut self) -> Parsed<String> {
        let Some(Token::Primes(primes)) = self.peek()? else { return Ok(String::new()) };
        let primes = primes.clone();
        self.place += 1;
        Ok(primes)
    }

    /// A number that begins with `first`, with or without commas between its thousands.
    fn number(&mut self, first: char) -> Parsed<Expression> {
        let mut digits = String::from(first);
        self.digits(&mut digits)?;
        let thousand = |parser: &mut Self| {
            parser.expect(&Token::Comma)?;
            let mut three = String::new();
            for _ in 0..3 {
                let Token::Digit(digit) = parser.next()? else { return Err(Problem::Mismatch) };
                three.push(digit);
            }
            Ok(three)
        };
        while let Some(three) = self.attempt(thousand)? {
            digits.push_str(&three);
        }

        let whole = digits.len();
        let is_float = self.peek()? == Some(&Token::Point);
        if is_float {
            self.place += 1;
            self.digits(&mut digits)?;
            if digits.len() == whole {
                return Err(Problem::Unreadable);
            }
        } else if digits.starts_with('0') && digits.bytes().any(|digit| digit != b'0') {
            // Python reads no whole number that begins with 0.
            return Err(Problem::Unreadable);
        }
        let places = digits.len() - whole;
        Ok(Expression::Number(Decimal { digits, places, is_float }))
    }

    fn digits(&mut self, digits: &mut String) -> Parsed<()> {
        while let Some(Token::Digit(digit)) = self.peek()? {
            digits.push(*digit);
            self.place += 1;
        }
        Ok(())
    }

    fn fraction(&mut self) -> Parsed<Expression> {
        let above_at = self.place;
        let above = self.half()?;
        let below_at = self.place;
        let below = self.half()?;
        let is_d = |place: usize| match self.tokens.get(place) {
            Ok(Some(Token::Symbol(name))) => name == "d",
            Ok(Some(Token::Differential(_))) => true,
            _ => false,
        };
        let is_differential = self.place == below_at + 3
            && matches!(self.tokens.get(below_at + 1), Ok(Some(Token::Differential(_))));
        if is_differential && is_d(above_at + 1) {
            return Err(Problem::Unreadable);
        }
        Ok(above.times(Expression::inverse(below)))
    }

    /// The numerator or the denominator: one digit, or a group.
    fn half(&mut self) -> Parsed<Expression> {
        if let Some(Token::Digit(digit)) = self.peek()? {
            let digits = digit.to_string();
            self.place += 1;
            return Ok(Expression::Number(Decimal { digits, places: 0, is_float: false }));
        }
        self.group(&Token::OpenBrace, &Token::CloseBrace)
    }
}

/// The product of factors that stand side by side. An `x` between two that hold no symbols is a sign of
/// multiplication.
fn juxtaposed(factors: &[Expression]) -> Expression {
    let is_sign = |place: usize| {
        place > 0
            && factors[place] == Expression::Symbol("x".to_owned())
            && !factors[place - 1].has_symbols()
            && factors.get(place + 1).is_some_and(|next| !next.has_symbols())
    };
    let kept = (0..factors.len()).filter(|&place| !is_sign(place)).map(|place| factors[place].clone());
    kept.reduce(Expression::times).expect("the first factor is kept")
}
