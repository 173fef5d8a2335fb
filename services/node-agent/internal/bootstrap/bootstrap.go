// Package bootstrap builds Envoy's bootstrap: its node, its admin interface, and the clusters by which it reaches the
// agent for xDS and SDS. Package app calls Build, a pure function, and Write, which puts the result into the state
// directory, where Envoy reads it. JSON is its encoding.
package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	regexv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/regex_engines/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/services/node-agent/internal/statedir"
)

// Names of the clusters in every bootstrap. xDS resources refer to SDSCluster.
const (
	XDSCluster   = "xds-grpc"
	SDSCluster   = "sds-grpc"
	AgentCluster = "agent"
	StatsCluster = "prometheus_stats"
)

// Back-off of Envoy's ADS stream to the agent. It is short, because package relay has the back-off towards the
// xds-servers.
const (
	reconnectBase = 50 * time.Millisecond
	reconnectMax  = time.Second
)

// TypeURL is the type by which the agent asks for bootstrap patches.
const TypeURL = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"

// maxRegexProgram bounds the size of a compiled regular expression. It is Istio's value, so that Istio's configurations
// load.
const maxRegexProgram = 32768

// Input is the input of Build.
type Input struct {
	Node *corev3.Node
	// XDSPath, SDSPath and AdminPath are unix sockets as Envoy opens them.
	XDSPath, SDSPath, AdminPath string
	// Delta selects incremental xDS.
	Delta bool
	// Status is the address of the agent's HTTP server; Ready and Stats are those of Envoy's listeners.
	Status, Ready, Stats netip.AddrPort
	// MaxDownstreamConnections limits the connections of all listeners.
	MaxDownstreamConnections uint64
	// RuntimeValues are ProxyConfig's runtimeValues.
	RuntimeValues map[string]string
	Telemetry     Telemetry
	// Statsd is Telemetry.StatsdAddress with its name resolved.
	Statsd netip.AddrPort
	// OutlierLog is the file for ejections of endpoints; "" for none.
	OutlierLog string
	// ReadyProxyProtocol accepts the PROXY protocol on Ready, from load balancers that check health with it.
	ReadyProxyProtocol bool
}

// Build makes the bootstrap and validates it by the rules in Envoy's API.
func Build(in Input) (*bootstrapv3.Bootstrap, error) {
	regexEngine, err := pack(&regexv3.GoogleRE2{})
	if err != nil {
		return nil, err
	}
	overload, err := overloadManager(in.MaxDownstreamConnections)
	if err != nil {
		return nil, err
	}
	clusters, err := clusters(in)
	if err != nil {
		return nil, err
	}
	listeners, err := listeners(in)
	if err != nil {
		return nil, err
	}
	runtime, err := layeredRuntime(in.RuntimeValues)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Node: in.Node,
		Admin: &bootstrapv3.Admin{
			Address:               pipe(in.AdminPath, 0o600),
			IgnoreGlobalConnLimit: true,
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters:  clusters,
			Listeners: listeners,
		},
		DynamicResources:     dynamicResources(in.Delta),
		LayeredRuntime:       runtime,
		OverloadManager:      overload,
		StatsConfig:          statsConfig(in.Telemetry),
		DefaultRegexEngine:   &corev3.TypedExtensionConfig{Name: "envoy.regex_engines.google_re2", TypedConfig: regexEngine},
		ApplicationLogConfig: logConfig(),
		ClusterManager:       outlierLog(in.OutlierLog),
	}
	if in.Telemetry.Flush > 0 {
		b.StatsFlushInterval = durationpb.New(in.Telemetry.Flush)
	}
	if in.Telemetry.Eviction > 0 {
		b.StatsEviction = &bootstrapv3.Bootstrap_StatsEvictionInterval{StatsEvictionInterval: durationpb.New(in.Telemetry.Eviction)}
	}
	if err := remotes(b, in); err != nil {
		return nil, err
	}
	if err := b.ValidateAll(); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return b, nil
}

// JSON encodes a bootstrap for Envoy's option -c. The same message gives the same bytes.
func JSON(b *bootstrapv3.Bootstrap) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	var out bytes.Buffer // protojson varies its white space
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// Write puts the bootstrap into the state directory, mode 0600.
func Write(dir *statedir.Dir, b *bootstrapv3.Bootstrap) error {
	data, err := JSON(b)
	if err != nil {
		return err
	}
	if err := dir.Write(statedir.Bootstrap, data); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// dynamicResources makes Envoy get all resources by one ADS stream. The first fetch has no time limit, because Envoy
// would otherwise start empty while no xds-server can be reached.
func dynamicResources(delta bool) *bootstrapv3.Bootstrap_DynamicResources {
	api := corev3.ApiConfigSource_GRPC
	if delta {
		api = corev3.ApiConfigSource_DELTA_GRPC
	}
	ads := func() *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
			InitialFetchTimeout:   durationpb.New(0),
		}
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:                   api,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
					ClusterName: XDSCluster,
					RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
						BaseInterval: durationpb.New(reconnectBase),
						MaxInterval:  durationpb.New(reconnectMax),
					}},
				}},
			}},
		},
		CdsConfig: ads(),
		LdsConfig: ads(),
	}
}

func layeredRuntime(values map[string]string) (*bootstrapv3.LayeredRuntime, error) {
	fields := map[string]any{"re2.max_program_size.error_level": maxRegexProgram}
	for k, v := range values {
		switch v { // ProxyConfig has only strings, and Envoy wants booleans
		case "": // takes a default back
			delete(fields, k)
		case "true", "false":
			fields[k] = v == "true"
		default:
			fields[k] = v
		}
	}
	static, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, fmt.Errorf("runtimeValues: %w", err)
	}
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{Name: "static", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: static}},
		{Name: "admin", LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}},
	}}, nil
}

func overloadManager(limit uint64) (*overloadv3.OverloadManager, error) {
	monitor, err := pack(&downstreamv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: int64(limit)})
	if err != nil {
		return nil, err
	}
	return &overloadv3.OverloadManager{
		RefreshInterval: durationpb.New(250 * time.Millisecond),
		ResourceMonitors: []*overloadv3.ResourceMonitor{{
			Name:       "envoy.resource_monitors.global_downstream_max_connections",
			ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: monitor},
		}},
	}, nil
}

// logConfig makes Envoy's log lines JSON, like the agent's on the same stream.
func logConfig() *bootstrapv3.Bootstrap_ApplicationLogConfig {
	line := func(v string) *structpb.Value { return structpb.NewStringValue(v) }
	return &bootstrapv3.Bootstrap_ApplicationLogConfig{
		LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat{
			LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat_JsonFormat{
				JsonFormat: &structpb.Struct{Fields: map[string]*structpb.Value{
					"time":    line("%Y-%m-%dT%T.%F%z"),
					"level":   line("%l"),
					"service": line("envoy"),
					"logger":  line("%n"),
					"msg":     line("%j"),
				}},
			},
		},
	}
}

// validated is a message of Envoy's API.
type validated interface {
	proto.Message
	ValidateAll() error
}

// pack validates a message and packs it into an Any, whose content the validation of the enclosing message skips.
func pack(m validated) (*anypb.Any, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	a, err := anypb.New(m)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return a, nil
}

func pipe(path string, mode uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}
}

func socketAddress(a netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}
