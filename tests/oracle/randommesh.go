package oracle

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// RandomMesh draws a small mesh whose objects refer to each other, rightly and wrongly: names, hosts, subsets and
// labels are of few, so that conflicts happen.
func RandomMesh(seed uint64) Case {
	d := &meshDrawer{rand.New(rand.NewPCG(seed, 0)), nil} //nolint:gosec // repeatable on purpose
	for i := range 3 + d.n(6) {
		d.objects = append(d.objects, d.object(fmt.Sprintf("o%d", i)))
	}
	return Case{fmt.Sprintf("random mesh of seed %d", seed), strings.Join(d.objects, "---\n")}
}

type meshDrawer struct {
	*rand.Rand
	objects []string
}

func (d *meshDrawer) n(n int) int { return d.IntN(n) }

func (d *meshDrawer) of(list ...string) string { return list[d.n(len(list))] }

func (d *meshDrawer) namespace() string { return d.of("shop", "shop", "bank", "edge") }

func (d *meshDrawer) host() string {
	return d.of("web", "web", "db", "web.shop.svc.cluster.local", "out.example.com", "nowhere")
}

// object draws an object of a networking kind.
func (d *meshDrawer) object(name string) string {
	head := func(kind, spec string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", kind, name,
			d.namespace(), spec)
	}
	switch d.n(7) {
	case 0:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {selector: {app: web}, ports: [{name: "+
			"%s, port: 80}%s]}\n", d.of("web", "db"), d.namespace(), d.of("http", "tcp", "web"),
			d.of("", ", {name: http-admin, port: 81}"))
	case 1:
		return head("DestinationRule", fmt.Sprintf("{host: %s, subsets: [{name: %s, labels: {version: v1}}], trafficPolicy: {%s}}", d.host(),
			d.of("v1", "v2"),
			d.of("", "tls: {mode: SIMPLE}", "tls: {mode: SIMPLE, caCertificates: /etc/ca.pem}", "outlierDetection: {consecutiveErrors: 3}")))
	case 2:
		return head("Gateway", fmt.Sprintf("{selector: {istio: %s}, servers: [{port: {number: %s, name: http, protocol: HTTP}, hosts: [%q]}]}",
			d.of("edge", "other"), d.of("80", "81"), d.of("*", "*.example.com", "a.example.com", "shop/*")))
	case 3:
		return head("ServiceEntry", fmt.Sprintf(
			"{hosts: [%s], location: MESH_EXTERNAL, resolution: %s, ports: [{number: 80, name: p, protocol: %s}]}",
			d.of("out.example.com", "b.example.com"), d.of("DNS", "NONE"), d.of("HTTP", "TCP", "TLS")))
	default:
		return head("VirtualService", fmt.Sprintf("{hosts: [%s], %shttp: [%s]}", d.of("web.shop.svc.cluster.local", "a.example.com", "web"),
			d.of("", "", "gateways: [o0], ", "gateways: [edge/o1, mesh], "), d.routes()))
	}
}

func (d *meshDrawer) routes() string {
	var out []string
	for range 1 + d.n(3) {
		var matches []string
		for range d.n(3) {
			matches = append(matches, d.of("{uri: {prefix: /a}}", "{uri: {prefix: /ab}}", "{uri: {exact: /a}}", "{uri: {prefix: /}}",
				"{headers: {x-user: {exact: ann}}}", "{uri: {prefix: /a}, headers: {x-user: {exact: ann}}}", "{uri: {regex: /a.*}}"))
		}
		route := "{"
		if len(matches) > 0 {
			route += "match: [" + strings.Join(matches, ", ") + "], "
		}
		route += fmt.Sprintf("route: [{destination: {host: %s%s%s}}]", d.host(), d.of("", "", ", subset: v1"), d.of("", ", port: {number: 80}"))
		out = append(out, route+d.of("", "", ", fault: {delay: {percent: 5, fixedDelay: 1s}}")+"}")
	}
	return strings.Join(out, ", ")
}
