package normalise

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit/protorand"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// seenFrom is what a namespace sees of each host: its Service and the Service's endpoints, without the fields that name
// other namespaces.
func seenFrom(held map[resource.Key]*configv1.Resource, namespace string) map[string]proto.Message {
	visible := map[hostKey]*configv1.Service{}
	for _, r := range held {
		s := r.GetService()
		if s == nil || !VisibleTo(s.ExportedTo, namespace) {
			continue
		}
		h := hostKey{Namespace: s.Namespace, Hostname: s.Hostname}
		if old := visible[h]; old == nil || old.Audience == "" {
			visible[h] = s
		}
	}
	out := map[string]proto.Message{}
	for h, s := range visible {
		for k, r := range held {
			if set := r.GetEndpointSet(); set != nil && k.Namespace == h.Namespace && set.Hostname == h.Hostname && set.Audience == s.Audience {
				set = proto.CloneOf(set)
				set.Audience = ""
				out[fmt.Sprintf("%s/%s:%d", h.Namespace, h.Hostname, set.Port)] = set
			}
		}
		s = proto.CloneOf(s)
		s.ExportedTo, s.Audience = nil, ""
		out[h.Namespace+"/"+h.Hostname] = s
	}
	return out
}

func text(seen map[string]proto.Message) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(seen)) {
		fmt.Fprintf(&b, "%s: %s\n", k, prototext.MarshalOptions{}.Format(seen[k]))
	}
	return strings.ReplaceAll(b.String(), "  ", " ")
}

// TestNamespacesSeeWhatIsExportedToThem: a namespace sees exactly the hosts that it would see in a mesh of the Services
// and ServiceEntries that are exported to it.
func TestNamespacesSeeWhatIsExportedToThem(t *testing.T) {
	split := 0
	for seed := range 1000 {
		d := drawer{protorand.Bytes(fmt.Append(nil, "visibility", seed))}
		drawn := map[object.Key]*object.Object{}
		for range 4 + d.from(12) {
			o, se := d.object(), &networking.ServiceEntry{}
			if d.from(2) == 0 {
				odd.Fill(d.from, se)
				o.Key = object.Key{Group: kinds.GroupNetworking, Kind: "ServiceEntry", Namespace: d.one("apps", "apps", "other"),
					Name: d.one("o1", "o2", "o3", "o4")}
				o.Body = se
				se.Hosts = []string{d.one("www.example.com", "www.example.com", "server.apps.svc.cluster.local")}
				se.ExportTo = strings.Fields(d.one("", ".", "*", "other", "apps other", ". istio-system", "~"))
			}
			drawn[o.Key] = o
		}
		mesh := func(kept func(*object.Object) bool) (*Mesh, map[resource.Key]*configv1.Resource) {
			var changes []Change
			for k, o := range drawn {
				if kept(o) {
					changes = append(changes, Change{k, o})
				}
			}
			m, held := New(Config{}), map[resource.Key]*configv1.Resource{}
			for _, r := range m.Apply(changes).Upserts {
				held[resource.KeyOf(r.Key)] = withBody(t, r)
				if r.GetService().GetAudience() != "" {
					split++
				}
			}
			return m, held
		}
		all, held := mesh(func(*object.Object) bool { return true })
		for _, namespace := range []string{"apps", "other", "istio-system", "elsewhere"} {
			_, open := mesh(func(o *object.Object) bool {
				return o.Key.Kind != "Service" && o.Key.Kind != "ServiceEntry" || VisibleTo(all.exportedTo(o), namespace)
			})
			if got, want := text(seenFrom(held, namespace)), text(seenFrom(open, namespace)); got != want {
				t.Fatalf("seed %d: namespace %s sees\n%s\nand of what is exported to it alone\n%s", seed, namespace, got, want)
			}
		}
	}
	t.Logf("%d Services beside others of their hosts", split)
	if split < 500 {
		t.Error("hosts with several visibilities are too rare")
	}
}

// TestVisibilities: objects of one host that are exported to different namespaces make one Service for each set of
// namespaces.
func TestVisibilities(t *testing.T) {
	const host = "www.example.com"
	static := func(name, to, port, address, more string) string {
		return entry(name, ", creationTimestamp: '2026-01-0"+name[1:]+"T00:00:00Z'",
			"hosts: ["+host+"], exportTo: ["+to+"], resolution: STATIC, endpoints: [{address: "+address+"}], ports: [{name: p"+port+", number: "+
				port+"}]"+more)
	}
	private, public := static("e1", ".", "80", "10.9.0.1", ", subjectAltNames: [secret]"), static("e2", "'*'", "81", "10.9.0.2", "")
	s := newState(t, private+public)
	show := func() string {
		var out []string
		for _, k := range slices.SortedFunc(maps.Keys(s.held), resource.Key.Compare) {
			if svc := s.held[k].GetService(); svc != nil {
				out = append(out, fmt.Sprintf("%s to %v:", k.Name, svc.ExportedTo))
				for _, p := range svc.Ports {
					out = append(out, fmt.Sprint(p.Number, "=",
						s.endpoints(k.Namespace, contract.EndpointSetName(&configv1.EndpointSet{Hostname: host, Port: p.Number, Cluster: "Kubernetes",
							Audience: svc.Audience}))))
				}
			}
		}
		return strings.Join(out, " ")
	}
	for _, step := range []struct {
		name, yaml string
		gone       string
		want       string
	}{
		{name: "an old one for itself, a young one for all",
			want: "www.example.com to [*]: 81=10.9.0.2:81 www.example.com/apps to [apps]: 80=10.9.0.1:80 81=10.9.0.2:81"},
		{name: "a third for others", yaml: static("e3", "other, shop", "82", "10.9.0.3", ""), want: "www.example.com to [*]: 81=10.9.0.2:81" +
			" www.example.com/apps to [apps]: 80=10.9.0.1:80 81=10.9.0.2:81 www.example.com/other to [other shop]: 81=10.9.0.2:81 82=10.9.0.3:82"},
		{name: "namespaces part", yaml: static("e3", "apps, shop", "82", "10.9.0.3", ""), want: "www.example.com to [*]: 81=10.9.0.2:81" +
			" www.example.com/apps to [apps]: 80=10.9.0.1:80 81=10.9.0.2:81 82=10.9.0.3:82 www.example.com/shop to [shop]: 81=10.9.0.2:81 " +
			"82=10.9.0.3:82"},
		{name: "the one for all goes", gone: "e2",
			want: "www.example.com/apps to [apps]: 80=10.9.0.1:80 82=10.9.0.3:82 www.example.com/shop to [shop]: 82=10.9.0.3:82"},
		{name: "one is left", gone: "e3", want: "www.example.com to [apps]: 80=10.9.0.1:80"},
		{name: "all exported to all namespaces", yaml: static("e1", "'*'", "80", "10.9.0.1", "") + public,
			want: "www.example.com to [*]: 80=10.9.0.1:80 81=10.9.0.2:81"},
		{name: "one exported to none", yaml: static("e1", "'~'", "80", "10.9.0.1", "") + public,
			want: "www.example.com to [*]: 81=10.9.0.2:81 www.example.com/~ to [~]: 80=10.9.0.1:80 81=10.9.0.2:81"},
		{name: "an endpoint changes", yaml: static("e1", ".", "80", "10.9.0.1", "") + static("e2", "'*'", "81", "10.9.0.7", ""),
			want: "www.example.com to [*]: 81=10.9.0.7:81 www.example.com/apps to [apps]: 80=10.9.0.1:80 81=10.9.0.7:81"},
	} {
		if step.gone != "" {
			s.remove("ServiceEntry", "apps", step.gone)
		} else {
			s.apply(step.yaml)
		}
		if got := show(); got != step.want {
			t.Errorf("%s: %s\nwant %s", step.name, got, step.want)
		}
	}
	all, own := s.service("apps", host), s.service("apps", host+"/apps")
	if len(own.GetAutoAddresses()) != 2 || !slices.Equal(own.GetAutoAddresses(), all.GetAutoAddresses()) {
		t.Errorf("allocated addresses %v and %v", all.GetAutoAddresses(), own.GetAutoAddresses())
	}
	s.apply(static("e1", ".", "80", "10.9.0.1", ", addresses: [10.5.0.1], subjectAltNames: [secret]"))
	all, own = s.service("apps", host), s.service("apps", host+"/apps")
	if len(own.GetAutoAddresses()) != 0 || len(all.GetAutoAddresses()) != 2 || len(all.GetAddresses()) != 0 ||
		len(all.GetSubjectAltNames()) != 0 || len(own.GetSubjectAltNames()) != 1 {
		t.Errorf("one says where clients connect to: %v and %v", all, own)
	}
}

// TestVisibilitiesOfService: a Kubernetes Service, and a ServiceEntry for its host that other namespaces do not see.
func TestVisibilitiesOfService(t *testing.T) {
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, "")+
		entry("b", "", "hosts: ["+fqdnA+
			"], exportTo: ['.'], resolution: STATIC, subjectAltNames: [secret], workloadSelector: {labels: {app: a}}, ports: [{name: more, "+
			"number: 8081}]"))
	if all := s.service("apps", fqdnA); len(all.SubjectAltNames) != 0 || len(all.Ports) != 1 || all.ExportedTo[0] != "*" {
		t.Errorf("for all: %v", all)
	}
	if own := s.service("apps", fqdnA+"/apps"); len(own.SubjectAltNames) != 1 || len(own.Ports) != 2 {
		t.Errorf("for its own namespace: %v", own)
	}
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); !strings.HasPrefix(got, "10.1.0.1:8080") {
		t.Error(got)
	}
	if got := s.endpoints("apps", fqdnA+":8081/Kubernetes/apps"); !strings.HasPrefix(got, "10.1.0.1:8081") {
		t.Error(got)
	}
}
