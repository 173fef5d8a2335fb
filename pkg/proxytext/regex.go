// Package proxytext checks texts that Envoy parses: Regex a regular expression, Format the format of an access log,
// HeaderValue that of a header. Envoy refuses a whole resource for one bad text in it, so config-watcher checks texts
// when it validates objects, and xds-server again before it sends them.
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
	// maxRegexLength bounds an expression before it is parsed.
	maxRegexLength = 1024
	// maxRegexProgram bounds the instructions of a compiled expression, as counted by size. It is half of Envoy's limit
	// (re2.max_program_size.error_level, 32768 in the bootstrap).
	maxRegexProgram = 16384
)

// Regex checks that an expression is valid in Envoy's RE2 and not too large for it.
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

// latin1 returns the expression as Envoy reads it: every byte is a character.
func latin1(expression string) string {
	runes := make([]rune, len(expression))
	for i := range len(expression) {
		runes[i] = rune(expression[i])
	}
	return string(runes)
}

// size estimates the instructions of Envoy's program: it needs one for every range of a class.
func size(program *syntax.Prog) int {
	n := len(program.Inst)
	for _, inst := range program.Inst {
		for i := 2; i < len(inst.Rune) && inst.Rune[i] <= unicode.MaxLatin1; i += 2 {
			n++
		}
	}
	return n
}

// checkEscapes refuses escapes that Go's syntax has and Envoy's does not: characters above one byte, and classes by
// their long names.
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

// braced returns the text between braces at the beginning of text.
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
