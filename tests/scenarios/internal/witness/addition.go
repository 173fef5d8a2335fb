package witness

import (
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/tests/scenarios/internal/wire"
)

// listenerType is that of the resources that get a log.
const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// loggerName is the log's.
const loggerName = "fairlead.tests.witness"

// addition is the access log that is added.
type addition struct{ log *accesslogv3.AccessLog }

func newAddition(file string) (*addition, error) {
	fields := map[string]any{}
	for name, command := range wire.Fields {
		fields[name] = command
	}
	format, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, err
	}
	config, err := anypb.New(&filev3.FileAccessLog{Path: file, AccessLogFormat: &filev3.FileAccessLog_LogFormat{
		LogFormat: &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: format}},
	}})
	return &addition{&accesslogv3.AccessLog{Name: loggerName, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: config}}}, err
}

// of is what changes the answers of a method; nil if they stay as they are.
func (a *addition) of(method string) func(raw []byte) ([]byte, error) {
	switch {
	case strings.HasSuffix(method, "/DeltaAggregatedResources"):
		return func(raw []byte) ([]byte, error) {
			answer := &discoveryv3.DeltaDiscoveryResponse{}
			if err := proto.Unmarshal(raw, answer); err != nil || answer.GetTypeUrl() != listenerType {
				return raw, err
			}
			for _, r := range answer.GetResources() {
				if err := a.listener(r.GetResource()); err != nil {
					return nil, err
				}
			}
			return proto.Marshal(answer)
		}
	case strings.HasSuffix(method, "/StreamAggregatedResources"):
		return func(raw []byte) ([]byte, error) {
			answer := &discoveryv3.DiscoveryResponse{}
			if err := proto.Unmarshal(raw, answer); err != nil || answer.GetTypeUrl() != listenerType {
				return raw, err
			}
			for _, r := range answer.GetResources() {
				if err := a.listener(r); err != nil {
					return nil, err
				}
			}
			return proto.Marshal(answer)
		}
	}
	return nil
}

// listener adds the log to a packed listener. What is no listener is the proxy's to refuse.
func (a *addition) listener(packed *anypb.Any) error {
	l := &listenerv3.Listener{}
	if packed == nil || packed.UnmarshalTo(l) != nil {
		return nil //nolint:nilerr // the proxy tells
	}
	chains := l.GetFilterChains()
	if d := l.GetDefaultFilterChain(); d != nil {
		chains = append(slices.Clone(chains), d)
	}
	for _, chain := range chains {
		for _, filter := range chain.GetFilters() {
			if err := a.filter(filter.GetTypedConfig()); err != nil {
				return err
			}
		}
	}
	return pack(packed, l)
}

// filter adds the log to a packed network filter that writes one.
func (a *addition) filter(packed *anypb.Any) error {
	hcm, tcp := &hcmv3.HttpConnectionManager{}, &tcpv3.TcpProxy{}
	switch {
	case packed.MessageIs(hcm) && packed.UnmarshalTo(hcm) == nil:
		hcm.AccessLog = append(hcm.AccessLog, a.log)
		return pack(packed, hcm)
	case packed.MessageIs(tcp) && packed.UnmarshalTo(tcp) == nil:
		tcp.AccessLog = append(tcp.AccessLog, a.log)
		return pack(packed, tcp)
	}
	return nil
}

// pack writes a message in the same bytes each time.
func pack(into *anypb.Any, m proto.Message) error {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	into.Value = raw
	return err
}
