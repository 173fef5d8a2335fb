package logview

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxyname"
)

// Choice says which logs of a mesh are shown: those of processes and Pods that are named, or all.
type Choice struct {
	meshclient.Selection
	Names []string
	// Container is a process of Pods, empty for all.
	Container string
}

// Sources returns the logs that are chosen, in the order of rundir.Processes.
func (c Choice) Sources(s *runstate.State) ([]Source, error) {
	selector, err := c.Labels()
	if err != nil {
		return nil, err
	}
	if c.Namespace != "" {
		if err := knownNamespace(s, c.Namespace); err != nil {
			return nil, err
		}
	}
	all := rundir.Processes(s)
	// With a flag about Pods, no name means all Pods and no services.
	podsOnly := c.Namespace != "" || c.Container != "" || selector != nil
	chosen := make([]bool, len(all))
	for i, p := range all {
		chosen[i] = len(c.Names) == 0 && (p.Pod != nil || !podsOnly)
	}
	for _, name := range c.Names {
		if err := c.selectByName(all, chosen, name); err != nil {
			return nil, err
		}
	}
	var list []Source
	var containers []string
	for i, p := range all {
		if !chosen[i] {
			continue
		}
		if p.Pod != nil {
			_, container, _ := strings.Cut(p.Name, "/")
			containers = append(containers, container)
			if c.Namespace != "" && p.Pod.Namespace != c.Namespace || c.Container != "" && container != c.Container ||
				selector != nil && !selector.Matches(labels.Set(p.Pod.Labels)) {
				continue
			}
		}
		list = append(list, Source{Name: p.Name, Path: p.Log})
	}
	if len(list) > 0 {
		return list, nil
	}
	if c.Container != "" && !slices.Contains(containers, c.Container) {
		slices.Sort(containers)
		containers = slices.Compact(containers)
		return nil, fmt.Errorf("no container %q%s; there are %s", c.Container, nearest.Hint(c.Container, containers),
			strings.Join(containers, ", "))
	}
	return nil, errors.New("no process has all that the flags ask for; `fairlead logs` without them shows all")
}

// selectByName sets chosen for the processes that a name means: a process, a program or a Pod.
func (c Choice) selectByName(all []rundir.MeshProcess, chosen []bool, name string) error {
	found := false
	var services []string
	var pods []proxyname.Proxy
	for i, p := range all {
		if p.Name == name || p.Program == name {
			chosen[i], found = true, true
		}
		if p.Pod == nil {
			services = append(services, p.Name)
			if p.Program != "" {
				services = append(services, p.Program)
			}
			continue
		}
		if one := (proxyname.Proxy{Name: p.Pod.Name, Namespace: p.Pod.Namespace, Workload: p.Pod.Workload}); !slices.Contains(pods, one) {
			pods = append(pods, one)
		}
	}
	if found {
		return nil
	}
	wanted, err := proxyname.Parse(name, c.Namespace)
	if err != nil {
		return process.Usage(err)
	}
	matches, err := wanted.Find(pods)
	if missing := new(proxyname.NotFoundError); errors.As(err, &missing) {
		var names []string
		for _, p := range all {
			if p.Pod != nil {
				names = append(names, p.Pod.Name, p.Pod.ID(), p.Pod.Workload)
			}
		}
		slices.Sort(services)
		return fmt.Errorf("no process and no Pod is named %q%s; there are %s", name, nearest.Hint(name, append(names, services...)),
			strings.Join(append(slices.Compact(services), missing.There...), ", "))
	}
	if err != nil {
		return err
	}
	for _, m := range matches {
		for i, p := range all {
			if p.Pod != nil && p.Pod.Name == pods[m].Name && p.Pod.Namespace == pods[m].Namespace {
				chosen[i] = true
			}
		}
	}
	return nil
}

// knownNamespace returns a *meshclient.NamespaceError if no Pod is in the namespace.
func knownNamespace(s *runstate.State, name string) error {
	there := lists.Map(s.Pods, func(p runstate.Pod) string { return p.Namespace })
	slices.Sort(there)
	if there = slices.Compact(there); !slices.Contains(there, name) {
		return &meshclient.NamespaceError{Name: name, There: there}
	}
	return nil
}
