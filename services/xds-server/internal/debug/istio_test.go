package debug_test

import (
	"encoding/json"
	"strings"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/debug"
)

// TestSyncStatusForIstioctl: each type of a proxy has the state that `fairlead proxy-status` shows for it.
func TestSyncStatusForIstioctl(t *testing.T) {
	p := newPages(t, nil, shop()...)
	revision := &configv1.Revision{Sequence: 6}
	for name, tc := range map[string]struct {
		ty   *configv1.ProxyTypeStatus
		want statusv3.ConfigStatus
	}{
		"acknowledged":     {&configv1.ProxyTypeStatus{Sent: revision, Acked: revision, Resources: 1}, statusv3.ConfigStatus_SYNCED},
		"held from before": {&configv1.ProxyTypeStatus{Resources: 1}, statusv3.ConfigStatus_SYNCED},
		"waits for an ACK": {&configv1.ProxyTypeStatus{Sent: revision, Awaiting: true}, statusv3.ConfigStatus_STALE},
		"waits to be sent": {&configv1.ProxyTypeStatus{Sent: revision, Pending: 1}, statusv3.ConfigStatus_STALE},
		"nothing yet":      {&configv1.ProxyTypeStatus{}, statusv3.ConfigStatus_NOT_SENT},
		"rejected": {&configv1.ProxyTypeStatus{Sent: revision, Rejection: &configv1.Rejection{Message: "no such cluster"}},
			statusv3.ConfigStatus_ERROR},
	} {
		tc.ty.TypeUrl = resource.ClusterType
		p.status.Types = []*configv1.ProxyTypeStatus{tc.ty}
		got, err := p.istio.Answer(debug.IstioSyncType, nil)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		c := &statusv3.ClientConfig{}
		if err := got[0].UnmarshalTo(c); err != nil {
			t.Fatal(err)
		}
		x := c.GetGenericXdsConfigs()[0]
		if c.GetNode().GetId() != nodeID || c.GetNode().GetMetadata().GetFields()["NAMESPACE"].GetStringValue() != "shop" ||
			x.GetConfigStatus() != tc.want || x.GetErrorState().GetDetails() != tc.ty.GetRejection().GetMessage() {
			t.Errorf("%s: %v, want %v", name, c, tc.want)
		}
		var rows []struct {
			Proxy     string
			Resources map[string]struct{ Status, LastError string }
		}
		page, err := p.istio.Answer(debug.IstioType, []string{"syncz"})
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(page[0].GetValue(), &rows); err != nil {
			t.Fatal(err)
		}
		if row := rows[0].Resources[resource.ClusterType]; rows[0].Proxy != nodeID || row.Status != tc.want.String() ||
			row.LastError != tc.ty.GetRejection().GetMessage() {
			t.Errorf("%s: page %v", name, rows)
		}
	}
}

// TestConfigDumpForIstioctl: the form is Envoy's own, and it contains no secret.
func TestConfigDumpForIstioctl(t *testing.T) {
	p := newPages(t, nil, shop()...)
	got, err := p.istio.Answer(debug.IstioConfigType, []string{"web-0.shop"})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range got {
		message, err := m.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch dump := message.(type) {
		case *adminv3.ClustersConfigDump:
			counts["clusters"] = len(dump.GetDynamicActiveClusters())
		case *adminv3.ListenersConfigDump:
			counts["listeners"] = len(dump.GetDynamicListeners())
		case *adminv3.RoutesConfigDump:
			counts["routes"] = len(dump.GetDynamicRouteConfigs())
		case *adminv3.EndpointsConfigDump:
			counts["endpoints"] = len(dump.GetDynamicEndpointConfigs())
		default:
			t.Errorf("a dump of %T", dump)
		}
	}
	for _, kind := range []string{"clusters", "listeners", "routes", "endpoints"} {
		if counts[kind] == 0 {
			t.Errorf("no %s in the dump", kind)
		}
	}
}

func TestPagesForIstioctl(t *testing.T) {
	p := newPages(t, nil, shop()...)
	for name, want := range map[string]string{
		"list":                          `"syncz"`,
		"registryz":                     "404 page not found", // istioctl shows the list of pages then
		"edsz":                          "You must provide a proxyID in the query string",
		"config_dump":                   "You must provide a proxyID in the query string",
		"edsz?proxyID=web-0.shop":       cluster,
		"config_dump?proxyID=" + nodeID: "dynamicActiveClusters",
		"ndsz?proxyID=web-0.shop":       "NameTable",
		"ndsz?proxyID=nobody.shop":      "no proxy",
		"why?proxy=web-0.shop&name=" + reviews + ":9080": "madeFrom",
		"proxies": nodeID,
	} {
		got, err := p.istio.Answer(debug.IstioType, []string{name})
		if err != nil || len(got) != 1 || !strings.Contains(string(got[0].GetValue()), want) {
			t.Errorf("%s: %s, %v; want %q", name, got, err, want)
		}
	}
	for name, tc := range map[string]struct {
		url   string
		names []string
		want  codes.Code
	}{
		"no page":          {debug.IstioType, nil, codes.InvalidArgument},
		"two pages":        {debug.IstioType, []string{"a", "b"}, codes.InvalidArgument},
		"no page's name":   {debug.IstioType, []string{"%zz"}, codes.InvalidArgument},
		"no proxy":         {debug.IstioConfigType, nil, codes.InvalidArgument},
		"an unknown proxy": {debug.IstioConfigType, []string{"nobody.shop"}, codes.NotFound},
		"an unknown type":  {debug.IstioType + "/pushz", nil, codes.Unimplemented},
	} {
		if _, err := p.istio.Answer(tc.url, tc.names); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
