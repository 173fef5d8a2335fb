package hcm

import (
	"encoding/json"
	"fmt"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// logField is a field of Istio's default access log, in the order of its text form.
type logField struct{ name, operator, quote string }

var logFields = []logField{
	{"start_time", "%START_TIME%", "[]"},
	{"method", "%REQ(:METHOD)%", ""},
	{"path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", ""},
	{"protocol", "%PROTOCOL%", ""},
	{"response_code", "%RESPONSE_CODE%", ""},
	{"response_flags", "%RESPONSE_FLAGS%", ""},
	{"response_code_details", "%RESPONSE_CODE_DETAILS%", ""},
	{"connection_termination_details", "%CONNECTION_TERMINATION_DETAILS%", ""},
	{"upstream_transport_failure_reason", "%UPSTREAM_TRANSPORT_FAILURE_REASON%", `""`},
	{"bytes_received", "%BYTES_RECEIVED%", ""},
	{"bytes_sent", "%BYTES_SENT%", ""},
	{"duration", "%DURATION%", ""},
	{"upstream_service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%", ""},
	{"x_forwarded_for", "%REQ(X-FORWARDED-FOR)%", `""`},
	{"user_agent", "%REQ(USER-AGENT)%", `""`},
	{"request_id", "%REQ(X-REQUEST-ID)%", `""`},
	{"authority", "%REQ(:AUTHORITY)%", `""`},
	{"upstream_host", "%UPSTREAM_HOST%", `""`},
	{"upstream_cluster", "%UPSTREAM_CLUSTER_RAW%", ""},
	{"upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%", ""},
	{"downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%", ""},
	{"downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%", ""},
	{"requested_server_name", "%REQUESTED_SERVER_NAME%", ""},
	{"route_name", "%ROUTE_NAME%", ""},
}

// AccessLog returns the access logs of MeshConfig: none, or one file as text or JSON.
func AccessLog(mesh *meshv1alpha1.MeshConfig) ([]*accesslogv3.AccessLog, error) {
	if mesh.GetAccessLogFile() == "" {
		return nil, nil
	}
	format, err := logFormat(mesh)
	if err != nil {
		return nil, err
	}
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.file",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: typedconfig.Any(&filelogv3.FileAccessLog{
			Path:            mesh.GetAccessLogFile(),
			AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format},
		})},
	}}, nil
}

// ListenerLog returns the access logs of a listener, for connections that match none of its filter chains and so appear
// in no other log.
func ListenerLog(mesh *meshv1alpha1.MeshConfig) ([]*accesslogv3.AccessLog, error) {
	if mesh.GetDisableEnvoyListenerLog() {
		return nil, nil
	}
	logs, err := AccessLog(mesh)
	for _, l := range logs {
		l.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
		}}
	}
	return logs, err
}

func logFormat(mesh *meshv1alpha1.MeshConfig) (*corev3.SubstitutionFormatString, error) {
	custom := mesh.GetAccessLogFormat()
	if mesh.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_JSON {
		fields := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		if custom == "" {
			for _, f := range logFields {
				fields.Fields[f.name] = structpb.NewStringValue(f.operator)
			}
		} else {
			var parsed map[string]any
			if err := json.Unmarshal([]byte(custom), &parsed); err != nil {
				return nil, fmt.Errorf("MeshConfig.accessLogFormat: not a JSON object, as accessLogEncoding JSON asks: %w", err)
			}
			var err error
			if fields, err = structpb.NewStruct(parsed); err != nil {
				return nil, fmt.Errorf("MeshConfig.accessLogFormat: %w", err)
			}
		}
		return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}}, nil
	}
	if custom == "" {
		custom = defaultText()
	}
	if !strings.HasSuffix(custom, "\n") {
		custom += "\n"
	}
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: custom}},
	}}, nil
}

// defaultText is Istio's default line, with quotes around the request line.
func defaultText() string {
	var words []string
	for _, f := range logFields {
		word := f.operator
		switch {
		case f.quote != "":
			word = f.quote[:1] + word + f.quote[1:]
		case f.name == "method":
			word = `"` + word
		case f.name == "protocol":
			word += `"`
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
