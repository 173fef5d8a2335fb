// Package proxyname finds proxies by the names that people write on the command line: a Pod's name or the beginning of
// one, with its namespace or without, or a Deployment's.
package proxyname

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
)

// Proxy is one that can be meant.
type Proxy struct {
	// Name of the Pod.
	Name      string
	Namespace string
	// Workload is the Deployment's name, empty if it is not known.
	Workload string
}

// ID is "<pod>.<namespace>".
func (p Proxy) ID() string { return p.Name + "." + p.Namespace }

// Wanted is what somebody has written.
type Wanted struct {
	text            string
	deployment      bool
	name, namespace string
}

// Parse reads "[pod/|deploy/]NAME[.NAMESPACE]". namespace is that of a flag, empty if there is none.
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

// AmbiguousError says that a name is too short.
type AmbiguousError struct {
	Name    string
	Matches []string
}

// Error implements error.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("proxy %q could be any of %s; write more of the name", e.Name, few(e.Matches))
}

// NotFoundError says that there is no such proxy.
type NotFoundError struct {
	Name, Namespace string
	// There are the names of all proxies that can be meant.
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

// few lists names, a screen of them at most.
func few(names []string) string {
	const shown = 12
	if len(names) > shown+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// Find returns the indices of those that are meant, at least one: the one whose whole name it is, else those whose
// names begin so. A Deployment means all of its Pods.
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
	// A Pod's whole name, in whichever namespaces, goes before longer names that begin so.
	if whole := slices.DeleteFunc(slices.Clone(begin), func(i int) bool { return all[i].Name != w.name }); len(whole) > 0 {
		return whole, nil
	}
	if len(begin) > 0 {
		return begin, nil
	}
	return nil, w.notFound(all)
}

// One is Find for a command that needs a single proxy: of a Deployment's Pods it is the first by name. Several proxies
// that share one name are streams of one Pod, of which the first counts.
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

// generated is what Kubernetes, or `fairlead up`, adds to a Deployment's name in its Pods' names.
var generated = regexp.MustCompile(`^-([a-z0-9]+-[a-z0-9]{5}|[0-9]+)$`)

// of tells whether the Pod belongs to a Deployment, "<name>" or "<name>.<namespace>". Where nobody has said which
// Deployment the Pod is of, its name tells.
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
	candidates := make([]string, 0, len(ids))
	for name := range ids {
		candidates = append(candidates, name)
	}
	slices.Sort(candidates)
	if near := nearest.Name(w.name, candidates); near != "" {
		if e.near = ids[near]; w.deployment {
			e.near = "deploy/" + near
		}
	}
	return e
}
