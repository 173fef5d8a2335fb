// Package match turns Istio's string matches into Envoy's. Exact matchers are used wherever they mean the same as the user's expression,
// so that a dot in a host name is a dot; expressions that Envoy would refuse are refused here, by name.
package match

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"
)

const (
	// maxRegexLength bounds the source of an expression, before anything is parsed.
	maxRegexLength = 1024
	// maxRegexProgram bounds the instructions an expression compiles to, as size counts them. It is half of the proxies' own limit
	// (re2.max_program_size.error_level, 32768 in their bootstrap).
	maxRegexProgram = 16384
)

// Regex returns a matcher for the whole string. It refuses what is not RE2 and what is too large for a proxy.
func Regex(expression string) (*matcherv3.RegexMatcher, error) {
	if expression == "" {
		return nil, errors.New("the regular expression is empty")
	}
	if len(expression) > maxRegexLength {
		return nil, fmt.Errorf("regular expression of %d bytes: the limit is %d", len(expression), maxRegexLength)
	}
	if err := checkEscapes(expression); err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", expression, err)
	}
	parsed, err := syntax.Parse(latin1(expression), syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w (RE2 syntax is required)", expression, err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", expression, err)
	}
	if n := size(program); n > maxRegexProgram {
		return nil, fmt.Errorf("regular expression %q compiles to %d instructions: the limit is %d", expression, n, maxRegexProgram)
	}
	return &matcherv3.RegexMatcher{Regex: expression}, nil
}

// latin1 returns the expression as the proxy reads it: every byte is a character.
func latin1(expression string) string {
	runes := make([]rune, len(expression))
	for i := range len(expression) {
		runes[i] = rune(expression[i])
	}
	return string(runes)
}

// size estimates the instructions of the proxy's program: it needs one for every range of a class.
func size(program *syntax.Prog) int {
	n := len(program.Inst)
	for _, inst := range program.Inst {
		for i := 2; i < len(inst.Rune) && inst.Rune[i] <= unicode.MaxLatin1; i += 2 {
			n++
		}
	}
	return n
}

// checkEscapes refuses what Go's syntax has and the proxy's has not: characters that are no byte, and classes by other than their short names.
func checkEscapes(expression string) error {
	for rest := expression; ; {
		_, after, ok := strings.Cut(rest, `\`)
		if !ok || after == "" {
			return nil
		}
		rest = after[1:]
		switch after[0] {
		case 'Q':
			_, rest, _ = strings.Cut(rest, `\E`)
		case 'x':
			digits, _ := braced(rest)
			if n, err := strconv.ParseUint(digits, 16, 32); err == nil && n > unicode.MaxLatin1 {
				return fmt.Errorf(`\x{%s} is no byte; write the character itself`, digits)
			}
		case 'p', 'P':
			name, ok := braced(rest)
			if !ok {
				name = rest[:min(1, len(rest))]
			}
			if name = strings.TrimPrefix(name, "^"); !isClass(name) {
				return fmt.Errorf(`\p{%s} is not known; use a general category such as Lu, or a script such as Greek`, name)
			}
		}
	}
}

// braced returns what stands between the braces that text begins with.
func braced(text string) (string, bool) {
	inner, ok := strings.CutPrefix(text, "{")
	if !ok {
		return "", false
	}
	inner, _, ok = strings.Cut(inner, "}")
	return inner, ok
}

func isClass(name string) bool {
	switch name {
	case "Any":
		return true
	case "Cn", "LC":
		return false
	}
	return unicode.Categories[name] != nil || unicode.Scripts[name] != nil
}

// IsLiteral tells whether an expression matches only itself.
func IsLiteral(expression string) bool {
	return expression != "" && regexp.QuoteMeta(expression) == expression
}

// Exact matches one string.
func Exact(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}

// Prefix matches strings that begin with value, which must not be empty.
func Prefix(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: value}}
}

// IsPresence tells whether a match only asks that a value is there: an empty StringMatch, an empty prefix, or Istio's regex "*".
func IsPresence(in *networking.StringMatch) bool {
	switch m := in.GetMatchType().(type) {
	case nil:
		return true
	case *networking.StringMatch_Prefix:
		return m.Prefix == ""
	case *networking.StringMatch_Regex:
		return m.Regex == "*"
	default:
		return false
	}
}

// String converts a match that is not IsPresence.
func String(in *networking.StringMatch) (*matcherv3.StringMatcher, error) {
	switch m := in.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return Exact(m.Exact), nil
	case *networking.StringMatch_Prefix:
		return Prefix(m.Prefix), nil
	case *networking.StringMatch_Regex:
		if IsLiteral(m.Regex) {
			return Exact(m.Regex), nil
		}
		regex, err := Regex(m.Regex)
		if err != nil {
			return nil, err
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex}}, nil
	default:
		return nil, fmt.Errorf("string match of type %T is not supported", m)
	}
}

// Header matches a request header, or a pseudo header such as ":method".
func Header(name string, in *networking.StringMatch) (*routev3.HeaderMatcher, error) {
	out := &routev3.HeaderMatcher{Name: name}
	if IsPresence(in) {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		return out, nil
	}
	value, err := String(in)
	if err != nil {
		return nil, err
	}
	out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: value}
	return out, nil
}

// WithoutHeader matches requests that Header does not match. A missing header counts as an empty one, as Istio has it.
func WithoutHeader(name string, in *networking.StringMatch) (*routev3.HeaderMatcher, error) {
	out, err := Header(name, in)
	if err != nil {
		return nil, err
	}
	out.InvertMatch = true
	if !IsPresence(in) {
		out.TreatMissingHeaderAsEmpty = true
	}
	return out, nil
}

// Query matches a query parameter.
func Query(name string, in *networking.StringMatch) (*routev3.QueryParameterMatcher, error) {
	out := &routev3.QueryParameterMatcher{Name: name}
	if IsPresence(in) {
		out.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		return out, nil
	}
	value, err := String(in)
	if err != nil {
		return nil, err
	}
	out.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: value}
	return out, nil
}
