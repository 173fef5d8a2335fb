// Package proxyname finds proxies by the names that people write on the command line: "[pod/|deploy/]NAME[.NAMESPACE]",
// or the beginning of a Pod's name. Parse reads such a name; Wanted.Find and Wanted.One choose from a list. Commands
// call it with the connected proxies, rundir with the Pods of its state.
package proxyname

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
)

// Proxy is a candidate.
type Proxy struct {
	// Name of the Pod.
	Name      string
	Namespace string
	// Workload is the Deployment's name, empty if it is not known.
	Workload string
}

// ID is "<pod>.<namespace>".
func (p Proxy) ID() string { return p.Name + "." + p.Namespace }

// Wanted is a parsed name.
type Wanted struct {
	text            string
	deployment      bool
	name, namespace string
}

// Parse parses a name. namespace is the value of -n, empty without it.
func Parse(text, namespace string) (Wanted, error) {
	w := Wanted{text: text, name: text, namespace: namespace}
	if kind, name, ok := strings.Cut(text, "/"); ok {
		switch strings.ToLower(kind) {
		case "po", "pod", "pods":
		case "deploy", "deployment", "deployments", "deployment.apps", "deployments.apps":
			w.deployment = true
		default:
			return w, fmt.Errorf("%q names no proxy: write NAME.NAMESPACE, pod/NAME or deploy/NAME", text)
		}
		w.name = name
	}
	if w.name == "" {
		return w, errors.New("the proxy's name is empty: write NAME.NAMESPACE, pod/NAME or deploy/NAME; `fairlead proxy-status` lists them")
	}
	return w, nil
}

// AmbiguousError says that several proxies match.
type AmbiguousError struct {
	Name    string
	Matches []string
}

// Error implements error.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("proxy %q could be any of %s; write more of the name", e.Name, few(e.Matches))
}

// NotFoundError says that no proxy matches.
type NotFoundError struct {
	Name, Namespace string
	// There are the names of all candidates.
	There []string
	near  string
}

// Error implements error.
func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("no proxy is named %q", e.Name)
	if e.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", e.Namespace)
	}
	switch {
	case e.near != "":
		return text + fmt.Sprintf("; did you mean %q? There are %s", e.near, few(e.There))
	case len(e.There) == 0 && e.Namespace != "":
		return text + ", which has none; -A is for all namespaces, `fairlead proxy-status` lists the proxies"
	case len(e.There) == 0:
		return text + "; no proxy is connected"
	}
	return text + "; there are " + few(e.There)
}

// few joins names, twelve at most.
func few(names []string) string {
	const shown = 12
	if len(names) > shown+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// OfDeployment reports whether the name is a Deployment's.
func (w Wanted) OfDeployment() bool { return w.deployment }

// Find returns the indices of the candidates that match, at least one: those with exactly this name, else those whose
// names begin with it. A Deployment's name matches all of its Pods.
func (w Wanted) Find(all []Proxy) ([]int, error) {
	var begin, exact []int
	for i, p := range all {
		namespaced := p.ID() == w.name
		switch {
		case w.namespace != "" && p.Namespace != w.namespace:
		case w.deployment:
			if p.of(w.name) {
				exact = append(exact, i)
			}
		case namespaced || p.Name == w.name && w.namespace != "":
			exact = append(exact, i)
		case strings.HasPrefix(p.ID(), w.name):
			begin = append(begin, i)
		}
	}
	if len(exact) > 0 {
		return exact, nil
	}
	// A Pod of exactly this name, in any namespace, is preferred to Pods whose names only begin so.
	if whole := slices.DeleteFunc(slices.Clone(begin), func(i int) bool { return all[i].Name != w.name }); len(whole) > 0 {
		return whole, nil
	}
	if len(begin) > 0 {
		return begin, nil
	}
	return nil, w.notFound(all)
}

// One is Find for commands that need a single proxy. Of a Deployment's Pods it returns the first by name. Several
// candidates of one name are streams of one Pod; the first is returned.
func (w Wanted) One(all []Proxy) (int, error) {
	found, err := w.Find(all)
	if err != nil {
		return 0, err
	}
	slices.SortStableFunc(found, func(a, b int) int { return strings.Compare(all[a].ID(), all[b].ID()) })
	var names []string
	for _, i := range found {
		if id := all[i].ID(); !slices.Contains(names, id) {
			names = append(names, id)
		}
	}
	if len(names) > 1 && !w.deployment {
		return 0, &AmbiguousError{Name: w.text, Matches: names}
	}
	return found[0], nil
}

// generated is the suffix that Kubernetes or `fairlead up` adds to a Deployment's name for its Pods.
var generated = regexp.MustCompile(`^-([a-z0-9]+-[a-z0-9]{5}|[0-9]+)$`)

// of reports whether the Pod belongs to a Deployment, "<name>" or "<name>.<namespace>". If the candidate's Workload is
// not known, its own name decides.
func (p Proxy) of(deployment string) bool {
	name, namespaced := strings.CutSuffix(deployment, "."+p.Namespace)
	for _, d := range []string{deployment, name} {
		rest, ok := strings.CutPrefix(p.Name, d)
		if p.Workload == d || p.Workload == "" && ok && generated.MatchString(rest) {
			return true
		}
		if !namespaced {
			break
		}
	}
	return false
}

func (w Wanted) notFound(all []Proxy) error {
	e := &NotFoundError{Name: w.text, Namespace: w.namespace}
	ids := map[string]string{}
	for _, p := range all {
		if w.namespace != "" && p.Namespace != w.namespace {
			continue
		}
		if !slices.Contains(e.There, p.ID()) {
			e.There = append(e.There, p.ID())
		}
		names := []string{p.ID(), p.Name, p.Workload}
		if w.deployment {
			names = []string{p.Workload}
		}
		for _, name := range names {
			if _, taken := ids[name]; !taken && name != "" {
				ids[name] = p.ID()
			}
		}
	}
	slices.Sort(e.There)
	if near := nearest.Name(w.name, slices.Sorted(maps.Keys(ids))); near != "" {
		if e.near = ids[near]; w.deployment {
			e.near = "deploy/" + near
		}
	}
	return e
}
