package running

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// base is a mesh without findings: services of two namespaces, a ServiceEntry, a gateway with its workload.
const base = `
{apiVersion: v1, kind: Namespace, metadata: {name: empty}}
---
{apiVersion: v1, kind: Service, metadata: {name: reviews, namespace: shop}, spec: {ports: [{name: http, port: 9080}, {name: grpc, port: 7070}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: ratings, namespace: bank}, spec: {ports: [{name: http, port: 9080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: private, namespace: bank, annotations: {networking.istio.io/exportTo: .}}, spec: {ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: alias, namespace: shop}, spec: {type: ExternalName, externalName: www.example.com}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec: {hosts: [www.example.com, "*.wild.example.com"], location: MESH_EXTERNAL, resolution: NONE, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews-too, namespace: shop}
spec: {host: reviews.shop.svc.cluster.local, subsets: [{name: v2, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: edge}
spec: {selector: {istio: ingress}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
{apiVersion: v1, kind: Pod, metadata: {name: ingress-0, namespace: edge, labels: {istio: ingress, app: ingress}}, spec: {containers: [{name: istio-proxy, image: proxy}]}}
`

// networkingObject writes an object of the networking group.
func networkingObject(kind, namespace, name, spec string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", kind, name, namespace,
		spec)
}

func vs(spec string) string      { return networkingObject("VirtualService", "shop", "x", spec) }
func rule(spec string) string    { return networkingObject("DestinationRule", "shop", "x", spec) }
func gateway(spec string) string { return networkingObject("Gateway", "edge", "x", spec) }
func sidecar(spec string) string { return networkingObject("Sidecar", "shop", "x", spec) }

func to(destination string) string {
	return vs("{hosts: [reviews], http: [{route: [{destination: {" + destination + "}}]}]}")
}

// TestChecks has a good and a bad case for each check, and correct objects that look like mistakes.
func TestChecks(t *testing.T) {
	server := func(tls string) string {
		return gateway("{selector: {istio: ingress}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example.com], " +
			"tls: {" + tls + "}}]}")
	}
	for name, tc := range map[string]struct {
		yaml []string
		// want has "<code> <kind> <field>" of each finding, says has parts of the first finding's text.
		want, says []string
	}{
		"nothing": {},

		"host":                      {[]string{to("host: reviews")}, nil, nil},
		"host of another namespace": {[]string{to("host: ratings.bank.svc.cluster.local")}, nil, nil},
		"host outside":              {[]string{to("host: WWW.example.com., port: {number: 443}")}, nil, nil},
		"alias":                     {[]string{to("host: alias, port: {number: 443}, subset: any")}, nil, nil},
		"unknown host": {[]string{to("host: ratings")}, []string{"HostNotFound VirtualService spec.http[0].route[0].destination.host"},
			[]string{`"ratings"`, "host ratings.shop.svc.cluster.local", "ratings.<namespace>.svc.cluster.local"}},
		"half a name": {[]string{to("host: ratings.bank")}, []string{"HostNotFound VirtualService spec.http[0].route[0].destination.host"},
			[]string{"write ratings.bank.svc.cluster.local"}},
		"host of a namespace that is not there": {[]string{to("host: ratings.nowhere.svc.cluster.local")},
			[]string{"HostNotFound VirtualService spec.http[0].route[0].destination.host"},
			[]string{"nothing is in namespace nowhere"}},
		"host under a wildcard": {[]string{to("host: a.wild.example.com")},
			[]string{"HostNotFound VirtualService spec.http[0].route[0].destination.host"},
			[]string{"*.wild.example.com covers it", "add a ServiceEntry"}},
		"host that the client does not see": {[]string{to("host: private.bank.svc.cluster.local")},
			[]string{"HostNotFound VirtualService spec.http[0].route[0].destination.host"},
			[]string{"not exported to namespace shop, only to bank"}},
		"host that the clients see": {[]string{networkingObject("VirtualService", "istio-system", "x",
			"{hosts: [ratings.bank.svc.cluster.local], exportTo: [bank], http: [{route: [{destination: {host: "+
				"private.bank.svc.cluster.local}}]}]}")}, nil, nil},
		"host of everybody's defaults": {[]string{networkingObject("VirtualService", "istio-system", "x",
			"{hosts: [ratings.bank.svc.cluster.local], http: [{route: [{destination: {host: private.bank.svc.cluster.local}}]}]}")}, nil, nil},
		"host that the gateway does not see": {[]string{networkingObject("VirtualService", "bank", "x",
			"{hosts: [a.example.com], gateways: [edge/front], http: [{route: [{destination: {host: private}}]}]}")},
			[]string{"HostNotFound VirtualService spec.http[0].route[0].destination.host"}, []string{"not exported to namespace edge"}},
		"hosts of mirrors, TLS and TCP": {
			[]string{vs(`{hosts: [reviews, a.example.com], http: [{route: [{destination: {host: reviews}}], mirror: {host: a}}],
  tls: [{match: [{sniHosts: [a.example.com]}], route: [{destination: {host: b}}]}], tcp: [{route: [{destination: {host: c}}]}]}`)},
			[]string{"HostNotFound VirtualService spec.http[0].mirror.host", "HostNotFound VirtualService spec.tls[0].route[0].destination.host",
				"HostNotFound VirtualService spec.tcp[0].route[0].destination.host"}, nil},

		"port": {[]string{to("host: reviews, port: {number: 7070}")}, nil, nil},
		"unknown port": {[]string{to("host: reviews, port: {number: 80}")},
			[]string{"PortNotFound VirtualService spec.http[0].route[0].destination.port.number"},
			[]string{"Service shop/reviews has no such port", "7070, 9080"}},

		"subset":                  {[]string{to("host: reviews, subset: v1")}, nil, nil},
		"subset of a second rule": {[]string{to("host: reviews, subset: v2")}, nil, nil},
		"unknown subset": {[]string{to("host: reviews, subset: v3")},
			[]string{"SubsetNotFound VirtualService spec.http[0].route[0].destination.subset"}, []string{"DestinationRule shop/reviews", "v1"}},
		"subset without a rule": {[]string{to("host: ratings.bank.svc.cluster.local, subset: v1")},
			[]string{"SubsetNotFound VirtualService spec.http[0].route[0].destination.subset"},
			[]string{"no DestinationRule for host ratings.bank.svc.cluster.local"}},
		"subset of the service's rule": {[]string{to("host: ratings.bank.svc.cluster.local, subset: v1"),
			networkingObject("DestinationRule", "bank", "r", "{host: ratings, subsets: [{name: v1}]}")}, nil, nil},
		"subset of the mesh's rule": {[]string{to("host: ratings.bank.svc.cluster.local, subset: v1"),
			networkingObject("DestinationRule", "istio-system", "r", `{host: "*.local", subsets: [{name: v1}]}`)}, nil, nil},
		"subset of a rule that nobody sees": {[]string{to("host: ratings.bank.svc.cluster.local, subset: v1"),
			networkingObject("DestinationRule", "bank", "r", "{host: ratings, exportTo: [.], subsets: [{name: v1}]}")}, nil, nil},
		"subset of a rule that the only clients do not see": {
			[]string{vs("{hosts: [reviews], exportTo: [.], http: [{route: [{destination: {host: ratings.bank.svc.cluster.local, subset: v1}}]}]}"),
				networkingObject("DestinationRule", "bank", "r", "{host: ratings, exportTo: [.], subsets: [{name: v1}]}")},
			[]string{"SubsetNotFound VirtualService spec.http[0].route[0].destination.subset"}, nil},
		"subset of a rule for chosen clients": {[]string{to("host: ratings.bank.svc.cluster.local, subset: v1"),
			networkingObject("DestinationRule", "shop", "r",
				"{host: ratings.bank.svc.cluster.local, workloadSelector: {matchLabels: {app: a}}, subsets: [{name: v1}]}")}, nil, nil},
		"subset beside a rule for chosen clients": {[]string{to("host: ratings.bank.svc.cluster.local, subset: v1"),
			networkingObject("DestinationRule", "bank", "r", "{host: ratings, subsets: [{name: v1}]}"),
			networkingObject("DestinationRule", "shop", "r",
				"{host: ratings.bank.svc.cluster.local, workloadSelector: {matchLabels: {app: a}}, subsets: [{name: v2}]}")}, nil, nil},

		"gateway": {
			[]string{vs("{hosts: [a.example.com], gateways: [edge/front, mesh], http: [{route: [{destination: {host: reviews}}]}]}")}, nil, nil},
		"gateway by its dotted name": {
			[]string{vs("{hosts: [a.example.com], gateways: [front.edge.svc.cluster.local], http: [{route: [{destination: {host: reviews}}]}]}")},
			nil, nil},
		"unknown gateway": {[]string{vs("{hosts: [a.example.com], gateways: [front], http: [{route: [{destination: {host: reviews}}]}]}")},
			[]string{"GatewayNotFound VirtualService spec.gateways[0]"}, []string{"no Gateway shop/front", "<namespace>/front"}},
		"unknown gateway of a match": {
			[]string{vs("{hosts: [a.example.com], http: [{match: [{gateways: [nowhere/front]}], route: [{destination: {host: reviews}}]}]}")},
			[]string{"GatewayNotFound VirtualService spec.http[0].match[0].gateways[0]"}, []string{"nothing is in namespace nowhere"}},

		"delegate": {[]string{vs("{hosts: [reviews], http: [{delegate: {name: part, namespace: bank}}]}"),
			networkingObject("VirtualService", "bank", "part", "{http: [{route: [{destination: {host: ratings}}]}]}")}, nil, nil},
		"unknown delegate": {[]string{vs("{hosts: [reviews], http: [{delegate: {name: part}}]}")},
			[]string{"DelegateNotFound VirtualService spec.http[0].delegate"}, []string{"shop/part"}},
		"delegate of nowhere": {[]string{vs("{hosts: [reviews], http: [{delegate: {name: part, namespace: nowhere}}]}")},
			[]string{"DelegateNotFound VirtualService spec.http[0].delegate"},
			[]string{"nothing is in namespace nowhere"}},
		"delegate with hosts": {[]string{vs("{hosts: [reviews], http: [{delegate: {name: part, namespace: bank}}]}"),
			networkingObject("VirtualService", "bank", "part", "{hosts: [ratings], http: [{route: [{destination: {host: ratings}}]}]}")},
			[]string{"DelegateNotFound VirtualService spec.http[0].delegate"}, []string{"hosts of its own"}},
		"delegate that is not exported": {[]string{vs("{hosts: [reviews], http: [{delegate: {name: part, namespace: bank}}]}"),
			networkingObject("VirtualService", "bank", "part", "{exportTo: [.], http: [{route: [{destination: {host: ratings}}]}]}")},
			[]string{"DelegateNotFound VirtualService spec.http[0].delegate"}, []string{"only to bank"}},

		"rule":                  {[]string{rule("{host: www.example.com}")}, nil, nil},
		"rule for a wildcard":   {[]string{rule(`{host: "*.example.org"}`)}, nil, nil},
		"rule for the wildcard": {[]string{rule(`{host: "*.wild.example.com"}`)}, nil, nil},
		"rule for what is nobody": {[]string{rule("{host: ratings}")}, []string{"RuleHostNotFound DestinationRule spec.host"},
			[]string{"ratings.shop.svc.cluster.local"}},

		"exported": {
			[]string{vs("{hosts: [reviews], exportTo: [., bank, empty, istio-system], http: [{route: [{destination: {host: reviews}}]}]}")}, nil,
			nil},
		"exported to nowhere": {[]string{rule("{host: reviews, exportTo: [bank, nowhere]}")},
			[]string{"NamespaceNotFound DestinationRule spec.exportTo[1]"}, []string{"nowhere"}},
		"service to nowhere": {
			[]string{
				`{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop, annotations: {networking.istio.io/exportTo: "bank,nowhere"}}, spec: {ports: [{port: 80}]}}`}, []string{"NamespaceNotFound Service metadata.annotations[networking.istio.io/exportTo]"}, nil},
		"entry to nowhere": {
			[]string{networkingObject("ServiceEntry", "shop", "x",
				"{hosts: [a.example.com], exportTo: [nowhere], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}")},
			[]string{"NamespaceNotFound ServiceEntry spec.exportTo[0]"}, nil},
		"server for a namespace": {
			[]string{
				gateway("{selector: {istio: ingress}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: [shop/a.example.com, ./*, " +
					"'*/b.example.com']}]}")}, nil, nil},
		"server for nowhere": {
			[]string{
				gateway("{selector: {istio: ingress}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: [nowhere/a.example.com]}]}")},
			[]string{"NamespaceNotFound Gateway spec.servers[0].hosts[0]"}, nil},

		"nothing selected": {
			[]string{gateway("{selector: {istio: egress}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example.com]}]}")},
			[]string{"NothingSelected Gateway spec.selector"}, []string{"istio=egress"}},
		"everything selected": {[]string{gateway("{servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example.com]}]}")}, nil,
			nil},

		"credential": {[]string{server("mode: SIMPLE, credentialName: pair"), secretYAML(t, "edge", "pair", "tls.crt", "tls.key")}, nil, nil},
		"credential with a scheme and a namespace": {[]string{server("mode: SIMPLE, credentialName: 'kubernetes://edge/pair'"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key")}, nil, nil},
		"credential elsewhere": {[]string{server("mode: SIMPLE, credentialName: pair"),
			secretYAML(t, "shop", "pair", "tls.crt", "tls.key")}, []string{"CredentialNotFound Gateway spec.servers[0].tls.credentialName"},
			[]string{"no Secret edge/pair"}},
		"credential of another namespace": {[]string{server("mode: SIMPLE, credentialName: kubernetes://shop/pair"),
			secretYAML(t, "shop", "pair", "tls.crt", "tls.key")},
			[]string{"CredentialNotFound Gateway spec.servers[0].tls.credentialName"}, []string{"not served to gateways of namespace edge"}},
		"credential of the wrong type": {[]string{server("mode: SIMPLE, credentialName: pair"),
			"{apiVersion: v1, kind: Secret, type: kubernetes.io/dockercfg, metadata: {name: pair, namespace: edge}, data: {.dockercfg: e30=}}"},
			[]string{"CredentialUnusable Gateway spec.servers[0].tls.credentialName"}, []string{"no usable certificate and key"}},
		"credential without an authority": {[]string{server("mode: MUTUAL, credentialName: pair"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key")},
			[]string{"CredentialUnusable Gateway spec.servers[0].tls.credentialName"}, []string{"pair-cacert", "ca.crt"}},
		"credential with its authority": {[]string{server("mode: MUTUAL, credentialName: pair"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key"), secretYAML(t, "edge", "pair-cacert", "ca.crt")}, nil, nil},
		"credential with both": {[]string{server("mode: MUTUAL, credentialName: pair"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key", "ca.crt")}, nil, nil},
		"credential of a ConfigMap": {[]string{server("mode: MUTUAL, credentialName: pair, caCertCredentialName: clients"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key"),
			strings.Replace(strings.Replace(secretYAML(t, "edge", "clients", "ca.crt"), "Secret", "ConfigMap", 1), "stringData", "data", 1)}, nil,
			nil},
		"authority that is not there": {[]string{server("mode: MUTUAL, credentialName: pair, caCertCredentialName: clients"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key")},
			[]string{"CredentialNotFound Gateway spec.servers[0].tls.caCertCredentialName"}, []string{"no Secret edge/clients"}},
		"several credentials": {[]string{server("mode: SIMPLE, credentialNames: [pair, other]"),
			secretYAML(t, "edge", "pair", "tls.crt", "tls.key")},
			[]string{"CredentialNotFound Gateway spec.servers[0].tls.credentialNames[1]"}, nil},

		"rule's credential": {[]string{rule("{host: reviews, trafficPolicy: {tls: {mode: SIMPLE, credentialName: ca}}}"),
			secretYAML(t, "edge", "ca", "ca.crt")}, nil, nil},
		"rule's credential that no gateway has": {
			[]string{
				rule("{host: www.example.com, trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: MUTUAL, credentialName: ca}}]}}"),
				secretYAML(t, "shop", "ca", "tls.crt", "tls.key")},
			[]string{"CredentialNotFound DestinationRule spec.trafficPolicy.portLevelSettings[0].tls.credentialName"}, []string{"edge/ca"}},
		"rule's credential for chosen workloads": {
			[]string{
				rule("{host: www.example.com, workloadSelector: {matchLabels: {app: a}}, trafficPolicy: {tls: {mode: SIMPLE, credentialName: ca}}}"),
				secretYAML(t, "edge", "ca", "ca.crt")},
			[]string{"CredentialNotFound DestinationRule spec.trafficPolicy.tls.credentialName"}, []string{"shop/ca"}},

		"egress": {
			[]string{
				sidecar(`{egress: [{hosts: ["./*", "*/ratings.bank.svc.cluster.local", "istio-system/*", "bank/private.bank.svc.cluster.local", "*/a.wild.example.com", "~nowhere/*", "empty/*"]}]}`)}, nil, nil},
		"egress host of a VirtualService": {[]string{sidecar(`{egress: [{hosts: ["./virtual.example.com"]}]}`),
			networkingObject("VirtualService", "shop", "v", "{hosts: [virtual.example.com], http: [{route: [{destination: {host: reviews}}]}]}")},
			nil, nil},
		"egress of nobody": {[]string{sidecar(`{egress: [{hosts: ["./ratings.bank.svc.cluster.local"]}]}`)},
			[]string{"HostNotFound Sidecar spec.egress[0].hosts[0]"}, []string{"namespace shop has no such host; namespace bank has"}},
		"egress to nowhere": {
			[]string{sidecar(`{egress: [{port: {number: 9080, name: http, protocol: HTTP}, hosts: ["./*"]}, {hosts: ["nowhere/*"]}]}`)},
			[]string{"NamespaceNotFound Sidecar spec.egress[1].hosts[0]"}, nil},
		"egress of a mesh on one machine": {
			[]string{"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: x, namespace: shop, labels: " +
				"{app.kubernetes.io/managed-by: fairlead-up}}\nspec: {egress: [{hosts: [nowhere/*]}]}\n"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append([]string{base}, tc.yaml...)...)
			all := f.All()
			var got []string
			for _, one := range all {
				got = append(got, fmt.Sprintf("%s %s %s", one.Code, one.Key.Kind, one.Field))
			}
			slices.Sort(got)
			want := slices.Sorted(slices.Values(tc.want))
			if !slices.Equal(got, want) {
				t.Fatalf("found %q, want %q", texts(all), want)
			}
			for _, part := range tc.says {
				if !strings.Contains(all[0].Error(), part) {
					t.Errorf("%q does not say %q", all[0].Error(), part)
				}
			}
			for _, one := range all {
				if one.Reason == "" || one.Remedy == "" || one.Location == "" || one.Severity != finding.Warning {
					t.Errorf("incomplete: %+v", one)
				}
			}
			f.sameFromScratch()
		})
	}
}

// secretYAML is a Secret with entries of the given names.
func secretYAML(t *testing.T, namespace, name string, entries ...string) string {
	ca := testkit.PKI(t)
	chain, key := ca.NewServer("a.example.com")
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData:\n", name, namespace)
	for _, entry := range entries {
		fmt.Fprintf(&b, "  %s: %q\n", entry, map[string][]byte{"tls.crt": chain, "tls.key": key, "ca.crt": chain}[entry])
	}
	return b.String()
}

func TestObjectsInAnEmptyNamespaceAreTold(t *testing.T) {
	const policy = "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: strict, namespace: defalt}, spec: {mtls: " +
		"{mode: STRICT}}}"
	const service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {clusterIP: 10.0.0.1, selector: {app: " +
		"web}, ports: [{port: 80, name: http}]}}"
	for name, tc := range map[string]struct {
		objects []string
		told    bool
	}{
		"a misspelt namespace": {[]string{service, policy}, true},
		"two of them":          {[]string{service, policy, strings.Replace(policy, "strict", "other", 1)}, true},
		"a namespace with a Namespace object": {[]string{service, policy, "{apiVersion: v1, kind: Namespace, metadata: {name: defalt}}"},
			false},
		"a namespace with a Service": {[]string{policy, strings.Replace(service, "default", "defalt", 1)}, false},
		"a namespace with a Pod": {
			[]string{policy, "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: defalt}, spec: {containers: [{name: a}]}, status: " +
				"{podIP: 10.1.1.1, phase: Running}}"}, false},
		"the root namespace": {[]string{service, strings.Replace(policy, "defalt", "istio-system", 1)}, false},
		"a rule, where the ServiceEntry is all else": {
			[]string{strings.NewReplacer("PeerAuthentication", "Sidecar", "security", "networking", "mtls: {mode: STRICT}",
				"egress: [{hosts: ['*/*']}]").Replace(policy),
				"{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: defalt}, spec: {hosts: [example.com], " +
					"ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}}"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			found := strings.Join(texts(newFixture(t, tc.objects...).All()), "\n")
			told := strings.Contains(found, string(finding.NamespaceEmpty))
			if told != tc.told {
				t.Errorf("told %t, want %t:\n%s", told, tc.told, found)
			}
			if told && !strings.Contains(found, `did you mean "default"?`) {
				t.Errorf("the nearest namespace is not named:\n%s", found)
			}
		})
	}
}
