package resourcename_test

import (
	"testing"

	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

func TestClusterNames(t *testing.T) {
	for _, tc := range []struct {
		name string
		want resourcename.Cluster
		ok   bool
	}{
		{"outbound|80|v1|reviews.default.svc.cluster.local",
			resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: 80, Subset: "v1", Hostname: "reviews.default.svc.cluster.local"},
			true},
		{"outbound|80||reviews.default.svc.cluster.local",
			resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: 80, Hostname: "reviews.default.svc.cluster.local"}, true},
		{"inbound|8080||", resourcename.Cluster{Direction: resourcename.DirectionInbound, Port: 8080}, true},
		{"sideways|80||a", resourcename.Cluster{}, false},
		{"outbound|0||a", resourcename.Cluster{}, false},
		{"outbound_.80_.v1_.a.b", resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: 80, Subset: "v1", Hostname: "a.b",
			AutoPassthrough: true}, true},
		{"outbound_.80_._.a.b", resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: 80, Hostname: "a.b", AutoPassthrough: true},
			true},
		{"outbound_.80_._.", resourcename.Cluster{}, false},
		{"outbound_.0_._.a", resourcename.Cluster{}, false},
		{"outbound_.80_.a", resourcename.Cluster{}, false},
		{"outbound|080||a", resourcename.Cluster{}, false},
		{"outbound|65536||a", resourcename.Cluster{}, false},
		{"outbound|+80||a", resourcename.Cluster{}, false},
		{"outbound|80|a", resourcename.Cluster{}, false},
		{"outbound|80||a|b", resourcename.Cluster{}, false},
		{"", resourcename.Cluster{}, false},
	} {
		got, ok := resourcename.ParseCluster(tc.name)
		if got != tc.want || ok != tc.ok {
			t.Errorf("ParseCluster(%q) = %+v, %v, want %+v, %v", tc.name, got, ok, tc.want, tc.ok)
		}
		if ok && got.String() != tc.name {
			t.Errorf("%q comes back as %q", tc.name, got.String())
		}
	}
}

func TestOnDemandClusterNames(t *testing.T) {
	for _, tc := range []struct {
		name string
		want resourcename.OnDemandCluster
		ok   bool
	}{
		{"ondemand|tcp|10.0.0.1|3306", resourcename.OnDemandCluster{Address: "10.0.0.1", Port: 3306}, true},
		{"ondemand|tcp|fd00::1|3306", resourcename.OnDemandCluster{Address: "fd00::1", Port: 3306}, true},
		{"ondemand|tls|10.0.0.1|443|a.com", resourcename.OnDemandCluster{Address: "10.0.0.1", Port: 443, TLS: true, ServerName: "a.com"}, true},
		{"ondemand|tls|10.0.0.1|443|-", resourcename.OnDemandCluster{Address: "10.0.0.1", Port: 443, TLS: true}, true},
		{"ondemand|tls|10.0.0.1|443|a|b", resourcename.OnDemandCluster{Address: "10.0.0.1", Port: 443, TLS: true, ServerName: "a|b"}, true},
		{"ondemand|tls|10.0.0.1|443", resourcename.OnDemandCluster{}, false},
		{"ondemand|tcp|10.0.0.1|443|a.com", resourcename.OnDemandCluster{}, false},
		{"ondemand|tcp|10.0.0.1", resourcename.OnDemandCluster{}, false},
		{"ondemand|tcp|a.com|80", resourcename.OnDemandCluster{}, false},
		{"ondemand|tcp|10.0.0.1|0", resourcename.OnDemandCluster{}, false},
		{"ondemand|udp|10.0.0.1|53", resourcename.OnDemandCluster{}, false},
		{"outbound|80||a", resourcename.OnDemandCluster{}, false},
	} {
		got, ok := resourcename.ParseOnDemandCluster(tc.name)
		if ok != tc.ok || ok && got != tc.want {
			t.Errorf("ParseOnDemandCluster(%q) = %+v, %v, want %+v, %v", tc.name, got, ok, tc.want, tc.ok)
		}
		if ok && got.String() != tc.name {
			t.Errorf("%q comes back as %q", tc.name, got.String())
		}
	}
	if got, ok := resourcename.ParseOnDemandCluster("ondemand|tls|10.0.0.1|443|WWW.A.com"); !ok || got.ServerName != "www.a.com" {
		t.Errorf("server names are the same in any case: %+v", got)
	}
}

func TestRouteAndListenerNames(t *testing.T) {
	if bind, port, ok := resourcename.ParseOutboundRouteConfig(resourcename.BoundOutboundRouteConfig("::1", 80)); bind != "::1" ||
		port != 80 || !ok {
		t.Errorf("bound route: %q, %d, %v", bind, port, ok)
	}
	if bind, port, ok := resourcename.ParseOutboundRouteConfig("9080"); bind != "" || port != 9080 || !ok {
		t.Errorf("outbound route: %q, %d, %v", bind, port, ok)
	}
	if _, _, ok := resourcename.ParseOutboundRouteConfig("http_proxy"); ok {
		t.Error("http_proxy is no port")
	}
	if host, port, ok := resourcename.ParseSniffedRouteConfig(resourcename.SniffedRouteConfig("a.b", 81)); host != "a.b" || port != 81 || !ok {
		t.Errorf("sniffed route: %q, %d, %v", host, port, ok)
	}
	if _, _, ok := resourcename.ParseSniffedRouteConfig("9080"); ok {
		t.Error("a port is no sniffed route")
	}
	if port, ok := resourcename.ParseGatewayHTTPRouteConfig(resourcename.GatewayHTTPRouteConfig(8080, "")); port != 8080 || !ok {
		t.Errorf("gateway route: %d, %v", port, ok)
	}
	if port, ok := resourcename.ParseGatewayHTTPRouteConfig(resourcename.GatewayHTTPRouteConfig(8080, "10.0.0.1")); port != 8080 || !ok {
		t.Errorf("gateway route of an address: %d, %v", port, ok)
	}
	if port, ok := resourcename.ParseGatewayHTTPSRouteConfig(resourcename.GatewayHTTPSRouteConfig(443, "https.x", "gw", "ns",
		"")); port != 443 || !ok {
		t.Errorf("gateway TLS route: %d, %v", port, ok)
	}
	for _, address := range []string{"0.0.0.0", "10.0.0.1", "::1"} {
		if a, port, ok := resourcename.ParseListener(resourcename.Listener(address, 9080)); a != address || port != 9080 || !ok {
			t.Errorf("listener on %s: %q, %d, %v", address, a, port, ok)
		}
	}
	if _, _, ok := resourcename.ParseListener("virtualOutbound"); ok {
		t.Error("virtualOutbound is no place")
	}
}

func TestIPv6AuthorityHasBrackets(t *testing.T) {
	for host, want := range map[string]string{"a.b": "a.b:80", "10.0.0.1": "10.0.0.1:80", "fd00::1": "[fd00::1]:80",
		"[fd00::1]": "[fd00::1]:80"} {
		if got := resourcename.HostPort(host, 80); got != want {
			t.Errorf("HostPort(%q) = %q, want %q", host, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("outbound|80|v1|a.b")
	f.Add("https.443.a.b.c")
	f.Add("outbound_.80_.v1_.a.b")
	f.Add("0.0.0.0_80")
	f.Fuzz(func(t *testing.T, name string) {
		if c, ok := resourcename.ParseCluster(name); ok && c.String() != name {
			t.Errorf("cluster %q comes back as %q", name, c.String())
		}
		if a, p, ok := resourcename.ParseListener(name); ok && resourcename.Listener(a, p) != name {
			t.Errorf("listener %q comes back as %q", name, resourcename.Listener(a, p))
		}
		if h, p, ok := resourcename.ParseSniffedRouteConfig(name); ok && resourcename.SniffedRouteConfig(h, p) != name {
			t.Errorf("route %q comes back as %q", name, resourcename.SniffedRouteConfig(h, p))
		}
		resourcename.ParseGatewayHTTPSRouteConfig(name)
		resourcename.ParseGatewayHTTPRouteConfig(name)
		resourcename.ParseOutboundRouteConfig(name)
	})
}
