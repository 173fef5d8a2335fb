package compare

import (
	"fmt"
	"regexp"
	"strings"

	"fairlead.dev/services/installer/internal/install/tree"
)

// Options say which objects are compared, and with which.
type Options struct {
	selected, ignored []pattern
	renames           []renaming
}

// pattern is KIND:NAMESPACE:NAME.
type pattern [3]*regexp.Regexp

type renaming struct {
	from pattern
	to   [3]string
}

// Select takes the list of objects that are compared; empty means all.
func (o *Options) Select(list string) (err error) {
	o.selected, err = patterns(list)
	return err
}

// Ignore takes the list of objects that are left out.
func (o *Options) Ignore(list string) (err error) {
	o.ignored, err = patterns(list)
	return err
}

// Rename takes the list of objects that are called otherwise on the second side.
func (o *Options) Rename(list string) error {
	for item := range items(list) {
		old, to, ok := strings.Cut(item, "->")
		if !ok {
			return fmt.Errorf("%q is not OLD->NEW", item)
		}
		from, err := parsePattern(old)
		if err != nil {
			return err
		}
		parts, err := divide(to)
		if err != nil {
			return err
		}
		for i, part := range parts {
			if strings.Contains(part, "*") && part != "*" {
				return fmt.Errorf("%q: %q may be * alone, which keeps what the object has, or a name", item, parts[i])
			}
		}
		o.renames = append(o.renames, renaming{from, parts})
	}
	return nil
}

// rename returns the new name of an object, and the object with it.
func (o Options) rename(k key, t tree.Map) (key, tree.Map) {
	for _, r := range o.renames {
		if !matches([]pattern{r.from}, k) {
			continue
		}
		t = tree.CopyMap(t)
		for i, field := range []struct {
			at   *string
			path []string
		}{{&k.kind, []string{"kind"}}, {&k.namespace, []string{"metadata", "namespace"}}, {&k.name, []string{"metadata", "name"}}} {
			if to := r.to[i]; to != "" && to != "*" {
				*field.at = to
				tree.Put(t, to, field.path...)
			}
		}
		return k, t
	}
	return k, t
}

func items(list string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for item := range strings.SplitSeq(list, ",") {
			if item = strings.TrimSpace(item); item != "" && !yield(item) {
				return
			}
		}
	}
}

func patterns(list string) ([]pattern, error) {
	var all []pattern
	for item := range items(list) {
		p, err := parsePattern(item)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func divide(text string) (parts [3]string, err error) {
	split := strings.Split(text, ":")
	if len(split) > 3 {
		return parts, fmt.Errorf("%q has more than two colons; write KIND:NAMESPACE:NAME", text)
	}
	copy(parts[:], split)
	return parts, nil
}

func parsePattern(text string) (pattern, error) {
	parts, err := divide(text)
	if err != nil {
		return pattern{}, err
	}
	var p pattern
	for i, part := range parts {
		if part == "" {
			part = "*"
		}
		p[i] = regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(part), `\*`, ".*") + "$")
	}
	return p, nil
}

func matches(list []pattern, k key) bool {
	for _, p := range list {
		if p[0].MatchString(k.kind) && p[1].MatchString(k.namespace) && p[2].MatchString(k.name) {
			return true
		}
	}
	return false
}
