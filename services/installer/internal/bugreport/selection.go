package bugreport

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Pod is a candidate of a Selection.
type Pod struct {
	Namespace, Deployment, Name string
	Labels, Annotations         map[string]string
}

// Selection chooses Pods and containers.
type Selection struct {
	include, exclude []spec
}

// spec is one value of --include or --exclude. An empty list takes all.
type spec struct {
	namespaces, deployments, pods, containers []string
	labels, annotations                       map[string]string
}

// form is the form of a spec, istioctl's.
const form = "NAMESPACE,.../DEPLOYMENT,.../POD,.../LABEL=VALUE,.../ANNOTATION=VALUE,.../CONTAINER,..., of which the later parts may be " +
	"left out; * stands for any text"

// ParseSelection parses the values of --include and --exclude.
func ParseSelection(include, exclude []string) (Selection, error) {
	var s Selection
	for _, set := range []struct {
		flag  string
		texts []string
		into  *[]spec
	}{{"include", include, &s.include}, {"exclude", exclude, &s.exclude}} {
		for _, text := range set.texts {
			parsed, err := parse(text)
			if err != nil {
				return s, fmt.Errorf("--%s %q: %w; write %s", set.flag, text, err, form)
			}
			*set.into = append(*set.into, parsed)
		}
	}
	return s, nil
}

func parse(text string) (s spec, err error) {
	parts, err := split(text)
	if err != nil {
		return s, err
	}
	lists := []*[]string{&s.namespaces, &s.deployments, &s.pods, nil, nil, &s.containers}
	if len(parts) > len(lists) {
		return s, fmt.Errorf("it has %d parts", len(parts))
	}
	for i, part := range parts {
		var names []string
		for name := range strings.SplitSeq(part, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
		if lists[i] != nil {
			for _, name := range names {
				if _, err := path.Match(name, ""); err != nil {
					return s, fmt.Errorf("%q: %w", name, err)
				}
			}
			*lists[i] = names
			continue
		}
		pairs := map[string]string{}
		for _, name := range names {
			k, v, ok := strings.Cut(name, "=")
			if !ok {
				return s, fmt.Errorf("%q is no name=value", name)
			}
			pairs[k] = v
		}
		if i == 3 {
			s.labels = pairs
		} else {
			s.annotations = pairs
		}
	}
	return s, nil
}

// split divides at slashes, but for those in names of labels and annotations, "example.com/name=value".
func split(text string) ([]string, error) {
	raw := strings.Split(text, "/")
	if len(raw) <= 3 {
		return raw, nil
	}
	parts := slices.Clone(raw[:3])
	for _, r := range raw[3:] {
		last := parts[len(parts)-1]
		i := strings.LastIndexByte(last, ',') + 1
		// The last name of a part of pairs that has no value yet goes on behind its slash.
		if len(parts) > 3 && len(parts) <= 5 && last[i:] != "" && !strings.Contains(last[i:], "=") {
			parts[len(parts)-1] = last + "/" + r
			continue
		}
		parts = append(parts, r)
	}
	return parts, nil
}

func anyOf(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}

func all(pairs, of map[string]string) bool {
	for k, v := range pairs {
		if has, there := of[k]; !there || !anyOf([]string{v}, has) {
			return false
		}
	}
	return true
}

func (s spec) pod(p Pod) bool {
	return anyOf(s.namespaces, p.Namespace) && anyOf(s.deployments, p.Deployment) && anyOf(s.pods, p.Name) && all(s.labels, p.Labels) &&
		all(s.annotations, p.Annotations)
}

// Takes tells whether a container of a Pod is meant. Without --include all are; --exclude leaves out what it names, a
// container alone if it names any.
func (s Selection) Takes(p Pod, container string) bool {
	meant := func(c spec) bool { return c.pod(p) && anyOf(c.containers, container) }
	return (len(s.include) == 0 || slices.ContainsFunc(s.include, meant)) && !slices.ContainsFunc(s.exclude, meant)
}
