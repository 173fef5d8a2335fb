package debug

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/ops"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve"
)

// Types that istioctl requests from an xDS server. The resources of IstioType are pages as bytes, one for each name.
const (
	IstioType       = serve.DebugType
	IstioSyncType   = IstioType + "/syncz"
	IstioConfigType = IstioType + "/config_dump"
)

// Istio answers Istio's debug types with the content of the debug pages.
type Istio struct{ pages *pages }

// NewIstio makes an Istio. It is cheap: one may be made for each request.
func NewIstio(fleet Fleet, engine *plan.Engine) *Istio {
	return &Istio{&pages{fleet: fleet, engine: engine}}
}

// Answer returns the resources of a debug type for these names. Its errors have gRPC statuses.
func (i *Istio) Answer(typeURL string, names []string) ([]*anypb.Any, error) {
	switch typeURL {
	case IstioSyncType:
		return i.syncStatus()
	case IstioConfigType:
		if len(names) != 1 {
			return nil, status.Errorf(codes.InvalidArgument, "%s takes the name of one proxy, <node id> or <name>.<namespace>", typeURL)
		}
		return i.configDump(names[0])
	case IstioType:
		if len(names) != 1 {
			return nil, status.Errorf(codes.InvalidArgument, "%s takes one name: %s", typeURL, strings.Join(pageNames(i.pagesByName()), ", "))
		}
		page, err := i.page(names[0])
		if err != nil {
			return nil, err
		}
		return []*anypb.Any{{TypeUrl: IstioType, Value: page}}, nil
	default:
		return nil, status.Errorf(codes.Unimplemented, "no debug type %q; ask for %s, %s or %s", typeURL, IstioType, IstioSyncType,
			IstioConfigType)
	}
}

// pagesByName has the pages by name. Those that Istio has too take its parameter proxyID.
func (i *Istio) pagesByName() map[string]func(*http.Request) (any, error) {
	d := i.pages
	return map[string]func(*http.Request) (any, error){
		"list":        func(*http.Request) (any, error) { return pageNames(i.pagesByName()), nil },
		"syncz":       d.syncz,
		"config_dump": i.dumpPage,
		"edsz":        d.ofType(resource.EndpointType),
		"ecdsz":       d.ofType(resource.ExtensionConfigType),
		"ndsz":        d.ofType("nametables"),
		"proxies":     d.proxies,
		"refusals":    d.refusals,
		"class":       d.class,
		"resources":   d.resources,
		"why":         d.why,
	}
}

func pageNames[V any](table map[string]V) []string { return slices.Sorted(maps.Keys(table)) }

// page returns one page as JSON. istioctl lists the pages when it reads "404 page not found", and asks for a proxy when
// it reads the other sentence.
func (i *Istio) page(name string) ([]byte, error) {
	u, err := url.Parse(name)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%q is not a page with parameters: %v", name, err)
	}
	page, ok := i.pagesByName()[u.Path]
	if !ok {
		return []byte("404 page not found: xds-server has no debug page " + u.Path), nil
	}
	q := u.Query()
	if id := q.Get("proxyID"); id != "" && q.Get("proxy") == "" {
		q.Set("proxy", id)
		u.RawQuery = q.Encode()
	}
	answer, err := page(&http.Request{Method: http.MethodGet, URL: u})
	if errors.Is(err, errNoProxy) {
		return []byte("You must provide a proxyID in the query string"), nil //nolint:nilerr // the text that istioctl looks for
	}
	if err != nil {
		return []byte(err.Error()), nil //nolint:nilerr // a text for the operator
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "page %s: %v", u.Path, err)
	}
	return raw, nil
}

var errNoProxy = errors.New("no proxy is named; add ?proxyID=<node id or name.namespace>")

// ofType returns a page with the resources of one type that a proxy is served.
func (d *pages) ofType(kind string) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		q := r.URL.Query()
		if q.Get("proxy") == "" {
			return nil, errNoProxy
		}
		q.Set("type", kind)
		return d.resources(&http.Request{Method: r.Method, URL: &url.URL{Path: r.URL.Path, RawQuery: q.Encode()}})
	}
}

// synced is one row of the page syncz, in Istio's words.
type synced struct {
	Proxy        string                  `json:"proxy"`
	ProxyVersion string                  `json:"proxy_version"`
	XDSServer    string                  `json:"xds_server"`
	Resources    map[string]resourceSync `json:"resources"`
}

type resourceSync struct {
	Status    string `json:"status"`
	Sent      string `json:"sent,omitempty"`
	Acked     string `json:"acked,omitempty"`
	LastError string `json:"lastError,omitempty"`
}

func (d *pages) syncz(*http.Request) (any, error) {
	rows := []synced{}
	for _, p := range d.fleet.Statuses() {
		row := synced{Proxy: p.GetNodeId(), ProxyVersion: p.GetProxyVersion(), XDSServer: p.GetXdsServer(), Resources: map[string]resourceSync{}}
		for _, t := range p.GetTypes() {
			row.Resources[t.GetTypeUrl()] = resourceSync{
				Status: configStatus(t).String(), Sent: revision(t.GetSent()), Acked: revision(t.GetAcked()), LastError: t.GetRejection().GetMessage(),
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func revision(r *configv1.Revision) string {
	if r == nil {
		return ""
	}
	return fmt.Sprint(r.GetSequence())
}

// configStatus is the state of a type at a proxy, as `fairlead proxy-status` shows it.
func configStatus(t *configv1.ProxyTypeStatus) statusv3.ConfigStatus {
	switch {
	case t.GetRejection() != nil:
		return statusv3.ConfigStatus_ERROR
	case t.GetAwaiting() || t.GetSent() != nil && t.GetPending() > 0:
		return statusv3.ConfigStatus_STALE
	case t.GetSent() == nil && (t.GetPending() > 0 || t.GetResources() == 0):
		return statusv3.ConfigStatus_NOT_SENT
	default:
		return statusv3.ConfigStatus_SYNCED
	}
}

// syncStatus has a ClientConfig for each proxy.
func (i *Istio) syncStatus() ([]*anypb.Any, error) {
	var all []*anypb.Any
	for _, p := range i.pages.fleet.Statuses() {
		c := &statusv3.ClientConfig{Node: &corev3.Node{Id: p.GetNodeId(), Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"NAMESPACE": structpb.NewStringValue(p.GetNamespace()), "ISTIO_VERSION": structpb.NewStringValue(p.GetProxyVersion()),
		}}}}
		for _, t := range p.GetTypes() {
			x := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: t.GetTypeUrl(), ConfigStatus: configStatus(t)}
			if r := t.GetRejection(); r != nil {
				x.ErrorState = &adminv3.UpdateFailureState{Details: r.GetMessage(), LastUpdateAttempt: r.GetRejectedAt()}
			}
			c.GenericXdsConfigs = append(c.GenericXdsConfigs, x)
		}
		packed, err := anypb.New(c)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "proxy %s: %v", p.GetNodeId(), err)
		}
		all = append(all, packed)
	}
	return all, nil
}

// configDump has what a proxy is served, in the form of Envoy's own config_dump, without secrets.
func (i *Istio) configDump(proxy string) ([]*anypb.Any, error) {
	_, c, err := i.pages.proxy(proxy)
	var missing *ops.StatusError
	switch {
	case errors.As(err, &missing) && missing.Code == http.StatusNotFound:
		return nil, status.Error(codes.NotFound, err.Error())
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	clusters, listeners, routes, endpoints := &adminv3.ClustersConfigDump{}, &adminv3.ListenersConfigDump{}, &adminv3.RoutesConfigDump{},
		&adminv3.EndpointsConfigDump{}
	each(c, resource.ClusterType, func(_, version string, m *anypb.Any) {
		clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters,
			&adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: version, Cluster: m})
	})
	each(c, resource.ListenerType, func(name, version string, m *anypb.Any) {
		state := &adminv3.ListenersConfigDump_DynamicListenerState{VersionInfo: version, Listener: m}
		listeners.DynamicListeners = append(listeners.DynamicListeners,
			&adminv3.ListenersConfigDump_DynamicListener{Name: name, ActiveState: state})
	})
	each(c, resource.RouteType, func(_, version string, m *anypb.Any) {
		routes.DynamicRouteConfigs = append(routes.DynamicRouteConfigs,
			&adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: version, RouteConfig: m})
	})
	each(c, resource.EndpointType, func(_, version string, m *anypb.Any) {
		endpoints.DynamicEndpointConfigs = append(endpoints.DynamicEndpointConfigs,
			&adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: version, EndpointConfig: m})
	})
	var all []*anypb.Any
	for _, m := range []proto.Message{clusters, listeners, routes, endpoints} {
		packed, err := anypb.New(m)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "config dump of %s: %v", proxy, err)
		}
		all = append(all, packed)
	}
	return all, nil
}

func each(c *plan.Class, typeURL string, f func(name, version string, m *anypb.Any)) {
	c.Snapshot().Type(typeURL).Scan(func(name string, item plan.Item) bool {
		if item.Blob != nil {
			f(name, item.Blob.Version(), item.Blob.Resource.GetResource())
		}
		return true
	})
}

// dumpPage is configDump in the form of Envoy's admin page.
func (i *Istio) dumpPage(r *http.Request) (any, error) {
	proxy := r.URL.Query().Get("proxy")
	if proxy == "" {
		return nil, errNoProxy
	}
	configs, err := i.configDump(proxy)
	if err != nil {
		return nil, err
	}
	return rawJSON(&adminv3.ConfigDump{Configs: configs})
}

func rawJSON(m proto.Message) (json.RawMessage, error) {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return raw, nil
}
