package status

import (
	"fmt"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/credential"
)

func server(port uint32, protocol, credentialName string) *networking.Server {
	s := &networking.Server{Port: &networking.Port{Number: port, Name: strings.ToLower(protocol), Protocol: protocol},
		Hosts: []string{"a.example.com", "b.example.com"}}
	if credentialName != "" {
		s.Tls = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: credentialName}
	}
	return s
}

// text is a status on one line.
func text(v Status) string {
	var out []string
	for _, c := range v.Conditions {
		out = append(out, fmt.Sprintf("%s=%v(%s: %s)", c.Type, c.Holds, c.Reason, c.Message))
	}
	for _, s := range v.Servers {
		out = append(out, fmt.Sprintf("%s %s=%s", s.Name, s.Port, s.Reason))
	}
	return strings.Join(out, "\n")
}

func TestEvaluateGateway(t *testing.T) {
	acked := Proxy{NodeID: "router~1~a.gateways~x", Namespace: "gateways", Workload: "a", Acked: true}
	waiting := Proxy{NodeID: "router~2~b.gateways~x", Namespace: "gateways", Workload: "b"}
	refusing := Proxy{NodeID: "router~3~c.gateways~x", Namespace: "gateways", Rejection: "Listener 0.0.0.0_80: no"}
	has := func(ref credential.Ref) bool { return ref == credential.Ref{Namespace: "gateways", Name: "there"} }
	older := &Gateway{Namespace: "first", Name: "g", Created: 1,
		Spec: &networking.Gateway{Servers: []*networking.Server{server(80, "TCP", "")}}, Proxies: []Proxy{acked}}
	elsewhere := &Gateway{Namespace: "first", Name: "elsewhere", Created: 1, Spec: older.Spec, Proxies: []Proxy{waiting}}
	for name, tc := range map[string]struct {
		servers []*networking.Server
		proxies []Proxy
		others  []*Gateway
		want    []string
	}{
		"programmed": {
			[]*networking.Server{server(80, "HTTP", ""), server(443, "HTTPS", "there")}, []Proxy{acked}, []*Gateway{elsewhere},
			[]string{"Accepted=true(", "ResolvedRefs=true(", "Programmed=true(Programmed: acknowledged by gateways/a)", "http 80/HTTP=Programmed",
				"https 443/HTTPS=Programmed"},
		},
		"nobody": {[]*networking.Server{server(80, "HTTP", "")}, nil, nil, []string{"Programmed=false(NoProxy: ", "http 80/HTTP=NoProxy"}},
		"pending": {[]*networking.Server{server(80, "HTTP", "")}, []Proxy{acked, waiting}, nil,
			[]string{"Programmed=false(Pending: not acknowledged yet by gateways/b)"}},
		"rejected": {[]*networking.Server{server(80, "HTTP", "")}, []Proxy{waiting, refusing}, nil,
			[]string{"Programmed=false(Rejected: router~3~c.gateways~x: Listener 0.0.0.0_80: no)"}},
		"port taken": {
			[]*networking.Server{server(80, "HTTP", ""), server(81, "HTTP", "")}, []Proxy{acked}, []*Gateway{older},
			[]string{"Accepted=false(PortConflict: server http: Gateway first/g is older", "http 80/HTTP=PortConflict", "http 81/HTTP=Programmed"},
		},
		"credential missing": {
			[]*networking.Server{server(443, "HTTPS", "missing"), server(444, "HTTPS", "kubernetes-gateway://gateways/there"),
				server(445, "HTTPS", "kubernetes-gateway://elsewhere/there")},
			[]Proxy{acked}, nil,
			[]string{
				"ResolvedRefs=false(CredentialMissing: ", "https 443/HTTPS=CredentialMissing", "https 444/HTTPS=Programmed",
				"https 445/HTTPS=CredentialMissing",
				"Secret elsewhere/there is not served to gateways of namespace gateways",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Gateway{Namespace: "gateways", Name: "g", Created: 2, Spec: &networking.Gateway{Servers: tc.servers}, Proxies: tc.proxies}
			got := text(EvaluateGateway(g, append([]*Gateway{g}, tc.others...), has))
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in\n%s", want, got)
				}
			}
		})
	}
}

// TestAGatewayIsUnknownWhileNobodyReports: that no proxy is known says nothing then.
func TestAGatewayIsUnknownWhileNobodyReports(t *testing.T) {
	g := &Gateway{Namespace: "gateways", Name: "g", Spec: &networking.Gateway{Servers: []*networking.Server{server(80, "HTTP", "")}},
		Unreported: true}
	s := EvaluateGateway(g, []*Gateway{g}, nil)
	if c := s.Get(Programmed); !c.Unknown || !c.KeepTrue || c.Reason != reasonUnreported {
		t.Errorf("the condition is %+v", c)
	}
}

// TestFilesAreOrderedByName: objects of files have no time, and nothing is called older.
func TestFilesAreOrderedByName(t *testing.T) {
	on := []Proxy{{NodeID: "router~1~a.gateways~x", Namespace: "gateways", Workload: "a", Acked: true}}
	a := &Gateway{Namespace: "gateways", Name: "a", Spec: &networking.Gateway{Servers: []*networking.Server{server(80, "TCP", "")}},
		Proxies: on}
	b := &Gateway{Namespace: "gateways", Name: "b", Spec: &networking.Gateway{Servers: []*networking.Server{server(80, "HTTP", "")}},
		Proxies: on}
	got := text(EvaluateGateway(b, []*Gateway{b, a}, nil))
	if !strings.Contains(got, "Gateway gateways/a comes first by name") || strings.Contains(got, "a is older") {
		t.Error(got)
	}
	if got := text(EvaluateGateway(a, []*Gateway{b, a}, nil)); strings.Contains(got, "PortConflict") {
		t.Error(got)
	}
}

func TestLongListsAreCut(t *testing.T) {
	var names []string
	for i := range 15 {
		names = append(names, fmt.Sprintf("proxy-%02d", i))
	}
	if got := listed(names); !strings.HasPrefix(got, "proxy-00, ") || !strings.HasSuffix(got, "proxy-09 and 5 more") {
		t.Error(got)
	}
}
