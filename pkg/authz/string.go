package authz

import (
	"regexp"
	"strings"
	"sync"
)

// Matches reports whether the string matches.
func (m StringMatch) Matches(s string) bool {
	text := m.Text
	if m.IgnoreCase {
		s, text = lower(s), lower(text)
	}
	switch m.Kind {
	case Exact:
		return s == text
	case Prefix:
		return strings.HasPrefix(s, text)
	case Suffix:
		return strings.HasSuffix(s, text)
	case Contains:
		return strings.Contains(s, text)
	case Present:
		return true
	case NotEmpty:
		return s != ""
	default:
		return m.re != nil && m.re.compiled(text).MatchString(s)
	}
}

func regex(text string) StringMatch {
	return StringMatch{Kind: Regex, Text: text, re: &expression{}}
}

// expression is compiled when it is first needed: who translates rules needs none.
type expression struct {
	once sync.Once
	re   *regexp.Regexp
}

func (e *expression) compiled(text string) *regexp.Regexp {
	e.once.Do(func() { e.re = regexp.MustCompile("^(?:" + text + ")$") })
	return e.re
}
