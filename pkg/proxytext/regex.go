// Package proxytext checks texts that a proxy parses: regular expressions, and the formats of header values. One that the proxy refuses takes all
// that comes with it along, so it is refused where the user still hears of it, and again before it is sent.
package proxytext

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
)

const (
	// maxRegexLength bounds the source of an expression, before anything is parsed.
	maxRegexLength = 1024
	// maxRegexProgram bounds the instructions an expression compiles to, as size counts them. It is half of the proxies' own limit
	// (re2.max_program_size.error_level, 32768 in their bootstrap).
	maxRegexProgram = 16384
)

// Regex checks a regular expression: it must be RE2 as the proxy's library has it, and not too large for it.
func Regex(expression string) error {
	if expression == "" {
		return errors.New("the expression is empty")
	}
	if len(expression) > maxRegexLength {
		return fmt.Errorf("%d bytes: the limit is %d", len(expression), maxRegexLength)
	}
	if err := checkEscapes(expression); err != nil {
		return err
	}
	parsed, err := syntax.Parse(latin1(expression), syntax.Perl)
	if err != nil {
		return fmt.Errorf("not a regular expression in RE2 syntax: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return err
	}
	if n := size(program); n > maxRegexProgram {
		return fmt.Errorf("it compiles to %d instructions: the limit is %d", n, maxRegexProgram)
	}
	return nil
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
