package virtualservice

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

func TestGatewaysOfMatches(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"none": {
			`{gateways: ["mesh"], http: [{match: [{port: 80}]}, {name: "rest"}]}`,
			`{gateways: ["mesh"], http: [{match: [{port: 80}]}, {name: "rest"}]}`,
		},
		"the object's": {
			`{gateways: ["mesh", "a/gw"], http: [{match: [{gateways: ["a/gw"]}]}, {name: "rest"}]}`,
			`{gateways: ["mesh", "a/gw"], http: [{match: [{gateways: ["a/gw"]}]}, {name: "rest"}]}`,
		},
		"another one": {
			`{gateways: ["mesh"], http: [{match: [{gateways: ["a/gw"]}, {port: 80}]}, {name: "rest"}]}`,
			`{gateways: ["mesh", "a/gw"], http: [{match: [{gateways: ["a/gw"]}, {port: 80, gateways: ["mesh"]}]}, {name: "rest", match: [{gateways: ["mesh"]}]}]}`,
		},
		"sources are sidecars": {
			`{gateways: ["mesh", "a/gw"], http: [{match: [{gateways: ["b/gw"]}, {sourceLabels: {app: "a"}}, {sourceNamespace: "a"}]}]}`,
			`{gateways: ["mesh", "a/gw", "b/gw"], http: [{match: [{gateways: ["b/gw"]}, {sourceLabels: {app: "a"}, gateways: ["mesh"]}, {sourceNamespace: "a", gateways: ["mesh"]}]}]}`,
		},
		"other protocols": {
			`{gateways: ["a/gw"], tls: [{match: [{sniHosts: ["a"], gateways: ["mesh"]}, {sniHosts: ["b"]}]}], tcp: [{route: []}]}`,
			`{gateways: ["a/gw", "mesh"], tls: [{match: [{sniHosts: ["a"], gateways: ["mesh"]}, {sniHosts: ["b"], gateways: ["a/gw"]}]}], tcp: [{match: [{gateways: ["a/gw"]}]}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := virtualService(t, tc.in), virtualService(t, tc.want)
			BindMatches(got)
			if !proto.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", protojson.Format(got), protojson.Format(want))
			}
		})
	}
}

func TestDelegateMatches(t *testing.T) {
	for name, tc := range map[string]struct{ root, own, want string }{
		"no match of its own": {`{match: [{uri: {prefix: "/a"}, ignoreUriCase: true}]}`, `{}`,
			`{match: [{uri: {prefix: "/a"}, ignoreUriCase: true}]}`},
		"none in the root": {`{}`, `{match: [{uri: {regex: "/a.*"}}]}`, `{match: [{uri: {regex: "/a.*"}}]}`},
		"within a prefix": {`{match: [{uri: {prefix: "/a"}}]}`, `{match: [{uri: {exact: "/a/b"}}]}`,
			`{match: [{uri: {exact: "/a/b"}}]}`},
		"outside of a prefix": {`{match: [{uri: {prefix: "/a"}}]}`, `{match: [{uri: {prefix: "/b"}}]}`, ``},
		"one match outside":   {`{match: [{uri: {prefix: "/a"}}]}`, `{match: [{uri: {prefix: "/a/b"}}, {uri: {prefix: "/c"}}]}`, ``},
		"within one of two": {`{match: [{uri: {prefix: "/a"}}, {uri: {prefix: "/b"}}]}`, `{match: [{uri: {prefix: "/b/c"}}]}`,
			`{match: [{uri: {prefix: "/b/c"}}]}`},
		"a wider prefix":    {`{match: [{uri: {exact: "/a"}}]}`, `{match: [{uri: {prefix: "/a"}}]}`, ``},
		"regex in the root": {`{match: [{uri: {regex: "/a.*"}}]}`, `{match: [{uri: {exact: "/ab"}}]}`, ``},
		"regex and another property": {`{match: [{uri: {regex: "/a.*"}}]}`, `{match: [{method: {exact: "GET"}}]}`,
			`{match: [{uri: {regex: "/a.*"}, method: {exact: "GET"}}]}`},
		"regex within a prefix": {`{match: [{uri: {prefix: "/a"}}]}`, `{match: [{uri: {regex: "/a.*"}}]}`, ``},
		"case differs":          {`{match: [{uri: {prefix: "/a"}, ignoreUriCase: true}]}`, `{match: [{uri: {prefix: "/a/b"}}]}`, ``},
		"case of the root's uri": {`{match: [{uri: {prefix: "/a"}}]}`, `{match: [{ignoreUriCase: true, port: 80}]}`,
			`{match: [{uri: {prefix: "/a"}, port: 80}]}`},
		"headers": {`{match: [{headers: {a: {exact: "1"}}}]}`, `{match: [{headers: {b: {}}}]}`,
			`{match: [{headers: {a: {exact: "1"}, b: {}}}]}`},
		"the same header": {`{match: [{headers: {a: {exact: "1"}}}]}`, `{match: [{headers: {a: {exact: "2"}}}]}`, ``},
		"query parameters": {`{match: [{queryParams: {a: {prefix: "1"}}}]}`, `{match: [{queryParams: {a: {exact: "12"}}}]}`,
			`{match: [{queryParams: {a: {exact: "12"}}}]}`},
		"excluded headers": {`{match: [{withoutHeaders: {a: {}}}]}`, `{match: [{withoutHeaders: {b: {}}}]}`,
			`{match: [{withoutHeaders: {a: {}, b: {}}}]}`},
		"another port": {`{match: [{port: 80}]}`, `{match: [{port: 81}]}`, ``},
		"gateways and source": {`{match: [{gateways: ["mesh"], sourceNamespace: "a"}]}`, `{match: [{port: 81}]}`,
			`{match: [{gateways: ["mesh"], sourceNamespace: "a", port: 81}]}`},
		"gateways of the delegate": {`{match: [{gateways: ["mesh", "a/gw"]}]}`, `{match: [{gateways: ["a/gw"]}]}`,
			`{match: [{gateways: ["a/gw"]}]}`},
		"gateways of the delegate alone": {`{match: [{port: 80}]}`, `{match: [{gateways: ["a/gw"], port: 80}]}`,
			`{match: [{gateways: ["a/gw"], port: 80}]}`},
		"gateways that the root has not": {`{match: [{gateways: ["mesh"]}]}`, `{match: [{gateways: ["mesh", "a/gw"]}]}`, ``},
		"namespace of the delegate": {`{match: [{port: 80}]}`, `{match: [{sourceNamespace: "a"}]}`,
			`{match: [{sourceNamespace: "a", port: 80}]}`},
		"another namespace": {`{match: [{sourceNamespace: "a"}]}`, `{match: [{sourceNamespace: "b"}]}`, ``},
		"the root answers": {`{directResponse: {status: 200}, mirror: {host: "b"}}`,
			`{route: [{destination: {host: "a"}}], rewrite: {uri: "/b"}}`, `{directResponse: {status: 200}}`},
		"the delegate redirects": {`{directResponse: {status: 200}}`, `{redirect: {uri: "/b"}}`, `{redirect: {uri: "/b"}}`},
		"other labels":           {`{match: [{sourceLabels: {app: "a"}}]}`, `{match: [{sourceLabels: {app: "b"}}]}`, ``},
		"names are joined": {`{name: "r", match: [{name: "m", port: 80}]}`, `{name: "d", match: [{name: "n", port: 80}]}`,
			`{name: "r-d", match: [{name: "m-n", port: 80}]}`},
		"policies come from the root": {`{timeout: "1s", retries: {attempts: 1}, headers: {request: {remove: ["x"]}}}`, `{timeout: "2s"}`,
			`{timeout: "2s", retries: {attempts: 1}, headers: {request: {remove: ["x"]}}}`},
		"no rewrite for a redirection": {`{rewrite: {uri: "/a"}, corsPolicy: {}}`, `{redirect: {uri: "/b"}}`,
			`{redirect: {uri: "/b"}, corsPolicy: {}}`},
	} {
		t.Run(name, func(t *testing.T) {
			root, own := httpRoute(t, tc.root), httpRoute(t, tc.own)
			var want []*networking.HTTPRoute
			if tc.want != "" {
				want = append(want, httpRoute(t, tc.want))
			}
			got := MergeDelegate(root, []*networking.HTTPRoute{own})
			if !proto.Equal(&networking.VirtualService{Http: got}, &networking.VirtualService{Http: want}) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func virtualService(t *testing.T, text string) *networking.VirtualService {
	t.Helper()
	return decoded(t, text, &networking.VirtualService{})
}

func httpRoute(t *testing.T, text string) *networking.HTTPRoute {
	t.Helper()
	return decoded(t, text, &networking.HTTPRoute{})
}

// decoded reads a message as users write it.
func decoded[M proto.Message](t *testing.T, text string, into M) M {
	t.Helper()
	json, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(json, into); err != nil {
		t.Fatal(err)
	}
	return into
}
