package envoyadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Kept returns whether the Envoy keeps a statistic, by its name: its bootstrap may tell it to keep few of them.
func (c *Client) Kept(ctx context.Context) (func(name string) bool, error) {
	body, err := c.Get(ctx, "/config_dump?mask=bootstrap.stats_config.stats_matcher")
	if err != nil {
		return nil, err
	}
	dump, err := ParseDump(body)
	if err != nil {
		return nil, err
	}
	var section struct {
		Bootstrap struct {
			Stats struct {
				Matcher struct {
					RejectAll bool           `json:"reject_all"`
					Exclusion *statsPatterns `json:"exclusion_list"`
					Inclusion *statsPatterns `json:"inclusion_list"`
				} `json:"stats_matcher"`
			} `json:"stats_config"`
		} `json:"bootstrap"`
	}
	if err := dump.section("BootstrapConfigDump", &section); err != nil {
		return nil, err
	}
	m := section.Bootstrap.Stats.Matcher
	return func(name string) bool {
		switch {
		case m.RejectAll:
			return false
		case m.Exclusion != nil:
			return !m.Exclusion.match(name)
		}
		return m.Inclusion == nil || m.Inclusion.match(name)
	}, nil
}

type statsPatterns struct {
	Patterns []statsPattern `json:"patterns"`
}

func (p *statsPatterns) match(name string) bool {
	return slices.ContainsFunc(p.Patterns, func(p statsPattern) bool { return p.matches(name) })
}

// statsPattern is Envoy's StringMatcher.
type statsPattern struct{ matches func(name string) bool }

// UnmarshalJSON implements json.Unmarshaler.
func (p *statsPattern) UnmarshalJSON(raw []byte) error {
	var in struct {
		Exact, Prefix, Suffix, Contains *string
		Regex                           *struct{ Regex string } `json:"safe_regex"`
		IgnoreCase                      bool                    `json:"ignore_case"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return err
	}
	with := func(compare func(name, value string) bool, value string) {
		p.matches = func(name string) bool {
			if in.IgnoreCase {
				return compare(strings.ToLower(name), strings.ToLower(value))
			}
			return compare(name, value)
		}
	}
	switch {
	case in.Exact != nil:
		with(func(name, value string) bool { return name == value }, *in.Exact)
	case in.Prefix != nil:
		with(strings.HasPrefix, *in.Prefix)
	case in.Suffix != nil:
		with(strings.HasSuffix, *in.Suffix)
	case in.Contains != nil:
		with(strings.Contains, *in.Contains)
	case in.Regex != nil:
		expression, err := regexp.Compile("^(?:" + in.Regex.Regex + ")$")
		if err != nil {
			return fmt.Errorf("stats matcher: %w", err)
		}
		p.matches = expression.MatchString
	default:
		return fmt.Errorf("stats matcher: the pattern %s is not known", raw)
	}
	return nil
}
