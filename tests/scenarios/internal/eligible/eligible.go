// Package eligible tells which scenarios can run with Pods of a cluster for machines.
package eligible

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/format"
)

// NeedsMachines says why a scenario cannot run where its workloads are Pods of a cluster; empty if it can. What the
// scenario and its topology contain decides.
func NeedsMachines(s *format.Scenario) string {
	if len(s.Needs) > 0 {
		return "needs " + strings.Join(s.Needs, ", ") + " of the machine"
	}
	if why := machinesOfTopology(s.Topology); why != "" {
		return why
	}
	if why := machinesOfSteps(s.Topology, s.Steps); why != "" {
		return why
	}
	return lateService(s.Topology, s.Steps, map[string]bool{})
}

// lateService finds a call to a Service of an earlier step from where no proxy is. A cluster does not tell when the
// rules of its nodes have a new Service; proxies say what they have. made collects the Services' names.
func lateService(t *format.Topology, steps []format.Step, made map[string]bool) string {
	for i := range steps {
		s := &steps[i]
		for _, d := range document.Split(s.Apply + "\n---\n" + s.ApplyNoWait) {
			if d.Kind() == "Service" {
				made[d.Name()] = true
			}
		}
		if s.Eventually != nil {
			if why := lateService(t, s.Eventually.Steps, made); why != "" {
				return why
			}
		}
		call := s.Call
		if s.Background != nil {
			call = &s.Background.Call
		}
		if call == nil || slices.ContainsFunc(t.Workloads, func(w format.Workload) bool { return w.Name == call.From && w.HasProxy() }) {
			continue
		}
		u, err := url.Parse(call.URL)
		if err != nil {
			continue
		}
		if name, _, _ := strings.Cut(u.Hostname(), "."); made[name] {
			return "calls Service " + name + ", which it has made, from " + call.From + ", which has no proxy"
		}
	}
	return ""
}

func machinesOfTopology(t *format.Topology) string {
	settings := document.Tree{}
	if yaml.Unmarshal([]byte(t.Mesh), &settings) != nil {
		return "the MeshConfig cannot be read"
	}
	for _, fixed := range []struct{ name, installed string }{{"trustDomain", "cluster.local"}, {"rootNamespace", format.RootNamespace}} {
		if v, ok := settings[fixed.name]; ok && v != fixed.installed {
			return fmt.Sprintf("%s %v is another than that of the installation", fixed.name, v)
		}
	}
	for i := range t.Workloads {
		w := &t.Workloads[i]
		switch {
		case w.Kind == format.Proxyless:
			return "workload " + w.Name + " is a gRPC program that speaks xDS itself"
		case w.Capture != format.Redirect:
			return "workload " + w.Name + " has another capture: " + w.Capture
		case w.Network != "":
			return "workload " + w.Name + " is in a network of its own, " + w.Network
		case !w.Started():
			return "workload " + w.Name + " comes later"
		}
	}
	return ""
}

func machinesOfSteps(t *format.Topology, steps []format.Step) string {
	for i := range steps {
		if why := machinesOfStep(t, &steps[i]); why != "" {
			return why
		}
	}
	return ""
}

func machinesOfStep(t *format.Topology, s *format.Step) string {
	for verb, target := range map[string]string{"stops": s.Stop, "starts": s.StartTarget, "kills": s.Kill, "restarts": s.Restart,
		"adds": s.Add, "removes": s.Remove} {
		if target != "" {
			return verb + " " + target
		}
	}
	for _, object := range s.Delete {
		if kind, _, _ := strings.Cut(object, "/"); slices.Contains(machineKinds, kind) {
			return "deletes a " + kind
		}
	}
	switch {
	case s.Files != nil:
		return "gives proxies files"
	case s.Config != nil:
		return machinesOfConfig(s.Config)
	case s.Eventually != nil:
		return machinesOfSteps(t, s.Eventually.Steps)
	case s.Call != nil:
		return machinesOfCall(t, s.Call)
	case s.Background != nil:
		return machinesOfCall(t, &s.Background.Call)
	}
	return machinesOfObjects(t, s.Apply+"\n---\n"+s.ApplyNoWait)
}

// machinesOfConfig: in a cluster there are more Services than those of a topology, and how many is the cluster's.
func machinesOfConfig(c *format.Config) string {
	for _, list := range []*format.Holdings{c.Clusters, c.Listeners, c.Routes, c.VirtualHosts, c.Endpoints} {
		if list != nil && (list.Min != nil || list.Max != nil) {
			return "counts what a proxy holds"
		}
	}
	return ""
}

func machinesOfCall(t *format.Topology, c *format.Call) string {
	if c.SourceIP != "" {
		return "gives the caller another address"
	}
	if c.From == format.Outside || c.Via != "" {
		return "" // the node answers for these names, or nobody asks for them
	}
	return outsideNames(t, c.URL)
}

// outsideNames: the name server of the cluster knows no names of the world outside.
func outsideNames(t *format.Topology, text string) string {
	for _, name := range slices.Sorted(maps.Keys(t.DNS)) {
		if strings.Contains(text, name) {
			return "has a Pod look up " + name + ", a name of the world outside"
		}
	}
	return ""
}

// unresolved are kinds in which a name is only compared.
var unresolved = []string{"Gateway", "VirtualService", "Ingress", "Secret"}

// machineKinds are kinds of which a cluster has its own objects, or makes them itself.
var machineKinds = []string{"Pod", "Node", "Namespace", "EndpointSlice", "Endpoints"}

var (
	unixSocket = regexp.MustCompile(`unix://`)
	fileGiven  = regexp.MustCompile(`\$\{files:`)
	httpsKeys  = regexp.MustCompile(`\$\{jwksHttpsUri:`)
	nodes      = regexp.MustCompile(`kubernetes\.io/hostname|internalTrafficPolicy: Local|PreferSameNode`)
	looksUp    = regexp.MustCompile(`resolution: DYNAMIC_DNS`)
	ip6        = regexp.MustCompile(`\bIPv6\b|DualStack`)
)

func machinesOfObjects(t *format.Topology, text string) string {
	for _, d := range document.Split(text) {
		switch {
		case slices.Contains(machineKinds, d.Kind()):
			return "writes a " + d.Kind()
		case d.Ref() == document.Ref("ConfigMap", format.RootNamespace, document.MeshObject):
			return "writes the mesh's settings, which are the installation's too"
		case unixSocket.MatchString(d.Text):
			return "has a proxy use a unix socket of the machine"
		case fileGiven.MatchString(d.Text):
			return "gives proxies files"
		case httpsKeys.MatchString(d.Text):
			return "has keys served by an authority that an installation does not trust"
		case nodes.MatchString(d.Text):
			return "tells nodes apart, of which the cluster has one"
		case looksUp.MatchString(d.Text):
			return "has a proxy look up the names that requests ask for"
		case ip6.MatchString(d.Text):
			return "needs IPv6"
		}
		if why := outsideNames(t, d.Text); why != "" && !slices.Contains(unresolved, d.Kind()) {
			return why
		}
	}
	return ""
}
