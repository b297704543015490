//! The tokens of a formula in LaTeX, as `LaTeX.g4` of sympy 1.14 has them: the longest command counts,
//! spacing commands mean nothing, and `d` with the letter after it is one token. A character that the grammar
//! does not have ends what can be read: whoever looks at it gets an error.

/// The name of the function that binomial coefficients are kept as. No text can give a symbol this name.
pub(in super::super) const BINOMIAL: &str = "\\binom";

/// A known function of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Function {
    Negative,
    Absolute,
    Conjugate,
    Factorial,
    Floor,
    Ceiling,
    Exponential,
    Logarithm,
    Logarithm10,
    Sine,
    Cosine,
    Tangent,
    Cosecant,
    Secant,
    Cotangent,
    ArcSine,
    ArcCosine,
    ArcTangent,
    HyperbolicSine,
    HyperbolicCosine,
    HyperbolicTangent,
}

impl Function {
    /// What the exponent -1 makes of it. `None` where it is a power.
    pub(super) fn inverse(self) -> Option<Self> {
        match self {
            Self::Sine => Some(Self::ArcSine),
            Self::Cosine => Some(Self::ArcCosine),
            Self::Tangent => Some(Self::ArcTangent),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Add,
    Subtract,
    Multiply,
    Divide,
    Relation,
    OpenParenthesis,
    CloseParenthesis,
    OpenBracket,
    CloseBracket,
    OpenBrace,
    CloseBrace,
    OpenSet,
    CloseSet,
    OpenFloor,
    CloseFloor,
    OpenCeiling,
    CloseCeiling,
    Bar,
    Caret,
    Underscore,
    Comma,
    Point,
    Factorial,
    Primes(String),
    Digit(char),
    Symbol(String),
    Differential(String),
    Function(Function),
    Root,
    Overline,
    Fraction,
    Binomial,
    /// What sympy reads and this program does not.
    Unsupported,
    /// A word of the grammar that no supported rule has.
    Other,
}

/// The tokens of a text.
pub(super) struct Tokens {
    tokens: Vec<Token>,
    /// Whether something follows that is no token.
    is_cut: bool,
}

impl Tokens {
    pub(super) fn of(text: &str) -> Self {
        let (mut tokens, mut rest) = (Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            match token(rest, c) {
                Some((token, length)) => {
                    tokens.extend(token);
                    rest = &rest[length..];
                }
                None => return Self { tokens, is_cut: true },
            }
        }
        Self { tokens, is_cut: false }
    }

    /// The token at a place; nothing behind the last one, and an error where no token follows.
    pub(super) fn get(&self, place: usize) -> Result<Option<&Token>, ()> {
        match self.tokens.get(place) {
            None if self.is_cut => Err(()),
            found => Ok(found),
        }
    }
}

fn is_white(c: char) -> bool {
    [' ', '\t', '\r', '\n'].contains(&c)
}

/// The first token of a text, unless it means nothing, and its length in bytes. `None` if there is none.
fn token(text: &str, first: char) -> Option<(Option<Token>, usize)> {
    let after_white = |text: &str| text.len() - text.trim_start_matches(is_white).len();
    let one = |token| Some((Some(token), 1));
    match first {
        '\\' => command(text),
        '+' => one(Token::Add),
        '-' => one(Token::Subtract),
        '*' => one(Token::Multiply),
        '/' | ':' => one(Token::Divide),
        '(' => one(Token::OpenParenthesis),
        ')' => one(Token::CloseParenthesis),
        '[' => one(Token::OpenBracket),
        ']' => one(Token::CloseBracket),
        '{' => one(Token::OpenBrace),
        '}' => one(Token::CloseBrace),
        '|' => one(Token::Bar),
        '^' => one(Token::Caret),
        '_' => one(Token::Underscore),
        ',' => one(Token::Comma),
        '.' => one(Token::Point),
        '!' => one(Token::Factorial),
        '<' | '>' | '=' => one(Token::Relation),
        '&' => {
            let white = after_white(&text[1..]);
            text[1 + white..].starts_with('=').then_some((Some(Token::Relation), white + 2))
        }
        '\'' => {
            let length = text.len() - text.trim_start_matches('\'').len();
            Some((Some(Token::Primes(text[..length].to_owned())), length))
        }
        'd' => {
            let white = after_white(&text[1..]);
            let start = 1 + white;
            let name = name(&text[start..]);
            let differential =
                |name: &str, length| Some((Some(Token::Differential(name.to_owned())), length));
            match text[start..].chars().next() {
                Some('\\') if !name.is_empty() => differential(name, start + 1 + name.len()),
                Some(c) if c.is_ascii_alphabetic() => differential(&text[start..=start], start + 1),
                _ => one(Token::Symbol("d".to_owned())),
            }
        }
        c if c.is_ascii_alphabetic() => one(Token::Symbol(c.to_string())),
        c if c.is_ascii_digit() => one(Token::Digit(c)),
        c if is_white(c) => Some((None, 1)),
        _ => None,
    }
}

/// The letters of a command: what follows its backslash.
fn name(text: &str) -> &str {
    let letters = text.strip_prefix('\\').unwrap_or_default();
    let length = letters.bytes().take_while(u8::is_ascii_alphabetic).count();
    &letters[..length]
}

/// The token of a command, which begins with a backslash.
fn command(text: &str) -> Option<(Option<Token>, usize)> {
    let name = name(text);
    if name.is_empty() {
        let token = match text[1..].chars().next()? {
            ',' | ':' | ';' | '!' | '*' | '-' | '.' | '/' | '"' | '(' | '=' => None,
            '{' => Some(Token::OpenSet),
            '}' => Some(Token::CloseSet),
            _ => return None,
        };
        return Some((token, 2));
    }
    let length = 1 + name.len();
    if matches!(name, "left" | "right") && text[length..].starts_with('|') {
        return Some((Some(Token::Other), length + 1));
    }
    Some((of_command(name), length))
}

fn of_command(name: &str) -> Option<Token> {
    Some(match name {
        "thinspace" | "medspace" | "thickspace" | "quad" | "qquad" | "negthinspace" | "negmedspace"
        | "negthickspace" | "left" | "right" | "vrule" | "vcenter" | "vbox" | "vskip" | "vspace" | "hfil" => {
            return None;
        }
        "times" | "cdot" => Token::Multiply,
        "div" => Token::Divide,
        "frac" | "dfrac" | "tfrac" => Token::Fraction,
        "binom" | "dbinom" | "tbinom" => Token::Binomial,
        "sqrt" => Token::Root,
        "overline" => Token::Overline,
        "neq" | "leq" | "le" | "leqq" | "leqslant" | "geq" | "ge" | "geqq" | "geqslant" => Token::Relation,
        "lfloor" => Token::OpenFloor,
        "rfloor" => Token::CloseFloor,
        "lceil" => Token::OpenCeiling,
        "rceil" => Token::CloseCeiling,
        "rangle" | "to" | "rightarrow" | "Rightarrow" | "longrightarrow" | "Longrightarrow" => Token::Other,
        "infty" | "int" | "sum" | "prod" | "lim" | "langle" | "mathit" | "arccsc" | "arcsec" | "arccot"
        | "arsinh" | "arcosh" | "artanh" => Token::Unsupported,
        name => function(name).map_or_else(|| Token::Symbol(name.to_owned()), Token::Function),
    })
}

fn function(name: &str) -> Option<Function> {
    Some(match name {
        "exp" => Function::Exponential,
        "log" | "ln" => Function::Logarithm,
        "lg" => Function::Logarithm10,
        "sin" => Function::Sine,
        "cos" => Function::Cosine,
        "tan" => Function::Tangent,
        "csc" => Function::Cosecant,
        "sec" => Function::Secant,
        "cot" => Function::Cotangent,
        "arcsin" => Function::ArcSine,
        "arccos" => Function::ArcCosine,
        "arctan" => Function::ArcTangent,
        "sinh" => Function::HyperbolicSine,
        "cosh" => Function::HyperbolicCosine,
        "tanh" => Function::HyperbolicTangent,
        _ => return None,
    })
}
