package translate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/nametable"
	"fairlead.dev/services/xds-server/internal/translate/trustbundle"
)

// drawMesh draws a mesh of a few services and VirtualServices, with hosts and values that collide, differ only in case,
// or have a meaning for Envoy.
func drawMesh(t *rapid.T) testCase {
	hosts := []string{
		"a.default.svc.cluster.local", "A.default.svc.cluster.local", "b.default.svc.cluster.local", "a.default", "a",
		"www.example.com", "*.example.com", "a.other.svc.cluster.local", "*.default.svc.cluster.local",
	}
	values := []string{"", "x", "a.b", "(", "5%", "%%", "%REQ(X)%", "*", ".*", "[a-z]+", strings.Repeat("(a*)", 40)}
	value := rapid.SampledFrom(values)
	host := rapid.SampledFrom(hosts)
	match := func() map[string]any {
		kind := rapid.SampledFrom([]string{"exact", "prefix", "regex"}).Draw(t, "kind")
		return map[string]any{kind: value.Draw(t, "value")}
	}
	var c testCase
	c.Class.Namespace = "default"
	c.Class.Type = rapid.SampledFrom([]string{"sidecar", "router"}).Draw(t, "type")
	c.Class.Interception = rapid.SampledFrom([]string{"REDIRECT", "TPROXY", "NONE"}).Draw(t, "interception")
	c.Class.OnDemand = rapid.Bool().Draw(t, "on demand")
	c.Class.Labels = map[string]string{"istio": "gateway"}
	c.Class.Addresses = []string{"127.66.1.1"}
	for i := range rapid.IntRange(0, 4).Draw(t, "services") {
		name := host.Draw(t, "service")
		port := rapid.SampledFrom([]int{80, 8080}).Draw(t, "port")
		protocol := rapid.IntRange(0, 11).Draw(t, "protocol")
		resolution := rapid.IntRange(1, 5).Draw(t, "resolution")
		c.Services = append(c.Services, json.RawMessage(fmt.Sprintf(
			`{"hostname": %q, "namespace": "default", "resolution": %d, "addresses": ["10.0.0.%d"], "ports": [{"number": %d, "protocol": %d}]}`,
			name, resolution, i%2, port, protocol)))
	}
	add := func(kind, name string, spec any) {
		raw, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		o := objectSpec{Kind: kind, Spec: raw}
		o.Metadata.Name, o.Metadata.Namespace = name, "default"
		c.Objects = append(c.Objects, o)
	}
	add("Gateway", "gw", map[string]any{"selector": map[string]any{"istio": "gateway"}, "servers": []any{
		map[string]any{"port": map[string]any{"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": []string{"*", host.Draw(t, "server")}},
	}})
	for i := range rapid.IntRange(0, 4).Draw(t, "virtual services") {
		var http []any
		for range rapid.IntRange(1, 3).Draw(t, "routes") {
			route := map[string]any{"route": []any{map[string]any{"destination": map[string]any{"host": host.Draw(t, "destination")}}}}
			switch rapid.IntRange(0, 5).Draw(t, "extra") {
			case 0:
				route["match"] = []any{map[string]any{"uri": match(), "headers": map[string]any{"x": match()},
					"queryParams": map[string]any{"q": match()}}}
			case 1:
				route["headers"] = map[string]any{"request": map[string]any{"set": map[string]any{"x": value.Draw(t, "header")}}}
			case 2:
				route["rewrite"] = map[string]any{"uri": value.Draw(t, "uri"), "authority": value.Draw(t, "authority")}
			case 3:
				delete(route, "route")
				route["redirect"] = map[string]any{"uri": value.Draw(t, "uri"),
					"redirectCode": rapid.SampledFrom([]int{0, 200, 301, 308}).Draw(t, "code")}
			case 4:
				route["fault"] = map[string]any{"abort": map[string]any{"percentage": map[string]any{"value": 50},
					"httpStatus": rapid.SampledFrom([]int{0, 503, 700}).Draw(t, "status")}}
			}
			http = append(http, route)
		}
		add("VirtualService", fmt.Sprintf("vs-%d", i), map[string]any{
			"hosts": []string{host.Draw(t, "host"), host.Draw(t, "second host")}, "gateways": []string{"mesh", "gw"}, "http": http,
		})
	}
	return c
}

// For any mesh, a translator returns an error that names the object, or a resource that passes validation and Envoy's
// rule on domains. It never panics, and builds every resource that it lists.
func TestRandomMeshesBuildValidResources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawMesh(t)
		resources, err := c.resources()
		if err != nil {
			t.Fatal(err)
		}
		state, err := mesh.FromResources(resources)
		if err != nil {
			t.Fatal(err)
		}
		key := c.Class.key()
		key.VirtualHosts = key.Type == class.Sidecar && rapid.Bool().Draw(t, "virtual hosts")
		key.OnDemand = key.VirtualHosts && rapid.Bool().Draw(t, "on demand")
		r := input.NewView(key, state).Reader()
		for _, translator := range translate.All() {
			names, err := plan.List(translator, key, state)
			if err != nil {
				continue
			}
			promised := len(names)
			// Route configurations are requested by name, and virtual hosts on demand.
			names = append(names, "80", "8080", "http.80", "a.default.svc.cluster.local:80", "80/a", "8080/b.default:80", "80/www.example.com")
			for i, name := range names {
				m, err := translator.Build(r, name)
				switch {
				case err != nil:
					if !strings.Contains(err.Error(), "default/") {
						t.Errorf("%q: the error names no object: %v", name, err)
					}
				case m == nil && i < promised:
					t.Errorf("%q: promised, not built", name)
				case m != nil:
					checkBuilt(t, key, name, m)
				}
			}
		}
	})
}

func checkBuilt(t *rapid.T, key *class.Key, name string, m proto.Message) {
	for _, fault := range faults(name, m) {
		t.Errorf("%s %q: %s", key.Type, name, fault)
	}
}

// faults lists the defects of a resource.
func faults(name string, m proto.Message) (out []string) {
	if v, ok := m.(interface{ ValidateAll() error }); !ok && name != nametable.Name && name != trustbundle.Name {
		out = append(out, "cannot be validated")
	} else if ok {
		if err := v.ValidateAll(); err != nil {
			out = append(out, err.Error())
		}
	}
	rc, ok := m.(*routev3.RouteConfiguration)
	if !ok {
		return out
	}
	domains := map[string]bool{}
	for _, host := range rc.GetVirtualHosts() {
		for _, domain := range host.GetDomains() {
			if domains[strings.ToLower(domain)] {
				out = append(out, fmt.Sprintf("domain %q occurs twice", domain))
			}
			domains[strings.ToLower(domain)] = true
		}
	}
	return out
}
