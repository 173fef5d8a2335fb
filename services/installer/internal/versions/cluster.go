package versions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/table"
)

// Mesh is what `fairlead version` tells of a cluster, in the names of istioctl's JSON.
type Mesh struct {
	Client version.Build `json:"clientVersion"`
	// Services are the replicas of the control plane, and Proxies the connected ones; nil if nobody was asked.
	Services []Replica `json:"meshVersion,omitempty"`
	Proxies  []Proxy   `json:"dataPlaneVersion,omitempty"`
	// Unknown says why the versions of proxies are not known, or that they are not all.
	Unknown []string `json:"unknown,omitempty"`
}

// Replica is a replica of the control plane with what it runs.
type Replica struct {
	Program   string         `json:"Component"`
	Revision  string         `json:"Revision"`
	Namespace string         `json:"namespace"`
	Pod       string         `json:"pod"`
	Node      string         `json:"node"`
	Image     string         `json:"image"`
	Ready     bool           `json:"ready"`
	Info      *version.Build `json:"Info,omitempty"`
	// Unknown says why Info is.
	Unknown string `json:"unknown,omitempty"`
}

// Proxy is what a proxy's node tells: the release of its agent, Envoy's where it tells none, and the revision of
// the control plane that injected it.
type Proxy struct {
	ID       string `json:"ID"`
	Version  string `json:"IstioVersion"`
	Envoy    string `json:"envoyVersion,omitempty"`
	Revision string `json:"revision,omitempty"`
}

// Replicas asks all replicas of a control plane at once.
func Replicas(ctx context.Context, mesh *controlplane.Mesh) []Replica {
	list := make([]Replica, len(mesh.Replicas))
	var all sync.WaitGroup
	for i, r := range mesh.Replicas {
		list[i] = Replica{Program: r.Program, Namespace: r.Namespace, Pod: r.Pod, Node: r.Node, Revision: r.Revision, Image: r.Image,
			Ready: r.Ready}
		all.Go(func() {
			var b version.Build
			if err := r.Ops().Get(ctx, "/debug/version", nil, &b); err != nil {
				list[i].Unknown = err.Error()
			} else {
				list[i].Info = &b
			}
		})
	}
	all.Wait()
	slices.SortStableFunc(list, func(a, b Replica) int {
		return cmp.Or(strings.Compare(a.Revision, b.Revision), strings.Compare(a.Program, b.Program))
	})
	return list
}

// OfCluster asks the control plane of a cluster. The error says that no replica has told its version; the
// client's is there all the same.
func OfCluster(ctx context.Context, mesh *meshclient.Mesh, controlPlane *controlplane.Mesh) (*Mesh, error) {
	ctx, cancel := context.WithTimeout(ctx, meshclient.CallTimeout)
	defer cancel()
	m := &Mesh{Client: version.Info(), Services: Replicas(ctx, controlPlane)}
	if !slices.ContainsFunc(m.Services, func(r Replica) bool { return r.Info != nil }) {
		first := m.Services[0]
		return m, fmt.Errorf("no replica of the control plane in namespace %s tells its version: %s: %s", controlPlane.Namespace, first.Pod,
			first.Unknown)
	}
	if len(controlPlane.Of(controlplane.ConfigWatcher)) == 0 {
		m.Unknown = append(m.Unknown, "versions of proxies: no config-watcher runs, which lists them")
		return m, nil
	}
	fleet, err := mesh.Fleet(ctx, meshclient.Selection{})
	if err != nil {
		m.Unknown = append(m.Unknown, "versions of proxies: "+err.Error())
		return m, nil
	}
	m.Unknown = append(m.Unknown, lists.Map(fleet.Silent, func(err error) string { return "versions of some proxies: " + err.Error() })...)
	m.Proxies = []Proxy{}
	for _, p := range fleet.GetProxies() {
		m.Proxies = append(m.Proxies, Proxy{
			meshclient.ProxyName(p.GetNodeId()), cmp.Or(p.GetAgentVersion(), p.GetProxyVersion(), "unknown"), p.GetProxyVersion(), p.GetRevision(),
		})
	}
	return m, nil
}

// Print prints the versions for people: of each replica, or if short is set one line for the control plane, in
// istioctl's words.
func (m *Mesh) Print(out io.Writer, short bool) error {
	text := Text
	if short {
		text = func(b version.Build) string { return b.Version }
	}
	_, failed := fmt.Fprintf(out, "client version: %s\n", text(m.Client))
	say := func(form string, a ...any) {
		_, err := fmt.Fprintf(out, form+"\n", a...)
		failed = errors.Join(failed, err)
	}
	switch {
	case m.Services == nil:
	case short:
		for _, line := range m.shortServices() {
			say("%s", line)
		}
	default:
		tab := &table.Table{Header: []string{"REVISION", "COMPONENT", "POD", "VERSION"}}
		for _, r := range m.Services {
			v := "unknown: " + r.Unknown + "; image " + r.Image
			if r.Info != nil {
				v = text(*r.Info)
			}
			if !r.Ready {
				v += ", not ready"
			}
			tab.Add(r.Revision, r.Program, r.Pod+"."+r.Namespace, v)
		}
		failed = errors.Join(failed, tab.Write(out))
	}
	switch {
	case len(m.Proxies) > 0:
		say("data plane version: %s", countProxies(m.Proxies, func(p Proxy) string { return p.Version }))
		if slices.ContainsFunc(m.Proxies, func(p Proxy) bool { return p.Revision != "" }) {
			say("data plane revision: %s", countProxies(m.Proxies, func(p Proxy) string { return cmp.Or(p.Revision, "none") }))
		}
	case m.Proxies != nil:
		say("data plane version: none")
	}
	for _, text := range m.Unknown {
		say("unknown: %s", strings.Join(strings.Fields(text), " "))
	}
	return failed
}

// shortServices is one line if all replicas run one version, else one for each version of a program in a revision.
func (m *Mesh) shortServices() (list []string) {
	versionOf := func(r Replica) string {
		if r.Info == nil {
			return "unknown"
		}
		return r.Info.Version
	}
	versions := lists.Map(m.Services, versionOf)
	slices.Sort(versions)
	if versions = slices.Compact(versions); len(versions) == 1 {
		return []string{"control plane version: " + versions[0]}
	}
	for _, r := range m.Services {
		line := fmt.Sprintf("%s version: %s (revision %s)", r.Program, versionOf(r), r.Revision)
		if !slices.Contains(list, line) {
			list = append(list, line)
		}
	}
	return list
}

// countProxies is "1.2.3 (2 proxies), 1.2.4 (1 proxies)", as istioctl writes it, by what of tells of each.
func countProxies(proxies []Proxy, of func(Proxy) string) string {
	counts := map[string]int{}
	for _, p := range proxies {
		counts[of(p)]++
	}
	var parts []string
	for v, n := range counts {
		parts = append(parts, fmt.Sprintf("%s (%d proxies)", v, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
