package validate

import (
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// retryOn lists Envoy's retry conditions, HTTP's and gRPC's
// (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter).
var retryOn = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx", "refused-stream",
	"retriable-status-codes", "retriable-headers", "http3-post-connect-failure", "cancelled", "deadline-exceeded", "internal",
	"resource-exhausted", "unavailable",
}

func (c *checker) retries(at string, r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	if r.Attempts < 0 {
		c.fail(at+".attempts", r.Attempts, "negative", "use 0 to switch retries off, or a positive number")
	}
	if r.Attempts == 0 && (r.PerTryTimeout != nil || r.RetryOn != "" || r.RetryRemoteLocalities != nil || r.Backoff != nil || r.RetryIgnorePreviousHosts != nil) {
		c.fail(at+".attempts", nil, "retries are switched off (attempts 0) but configured", "set attempts, or remove the other fields")
	}
	c.duration(at+".perTryTimeout", r.PerTryTimeout)
	c.duration(at+".backoff", r.Backoff)
	if r.RetryOn == "" {
		return
	}
	for _, cond := range strings.Split(r.RetryOn, ",") {
		if n, err := strconv.Atoi(cond); err == nil {
			if n < 100 || n > 599 {
				c.fail(at+".retryOn", cond, "no HTTP status", "use 100 to 599")
			}
			continue
		}
		if !contains(retryOn, cond) {
			c.fail(at+".retryOn", cond, "unknown retry condition", suggestion(cond, retryOn)+" Divide conditions by commas without spaces")
		}
	}
}

// grpcStatus are the names of gRPC's status codes.
var grpcStatus = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

func (c *checker) fault(at string, f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.Delay == nil && f.Abort == nil {
		c.fail(at, nil, "fault does nothing", "set delay or abort")
	}
	if d := f.Delay; d != nil {
		dp := at + ".delay"
		//nolint:staticcheck // deprecated in Istio, still served
		c.percent(dp+".percent", float64(d.Percent))
		if d.Percentage != nil {
			c.percent(dp+".percentage.value", d.Percentage.Value)
		}
		switch t := d.HttpDelayType.(type) {
		case *networking.HTTPFaultInjection_Delay_FixedDelay:
			c.duration(dp+".fixedDelay", t.FixedDelay)
		case *networking.HTTPFaultInjection_Delay_ExponentialDelay: // the table of unsupported fields has it
		default:
			c.fail(dp+".fixedDelay", nil, "missing", `set how long to wait, like "5s"`)
		}
	}
	if a := f.Abort; a != nil {
		c.abort(at+".abort", a)
	}
}

func (c *checker) abort(at string, a *networking.HTTPFaultInjection_Abort) {
	if a.Percentage != nil {
		c.percent(at+".percentage.value", a.Percentage.Value)
	}
	switch t := a.ErrorType.(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		if t.HttpStatus < 200 || t.HttpStatus > 599 {
			c.fail(at+".httpStatus", t.HttpStatus, "no final HTTP status", "use 200 to 599")
		}
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if !contains(grpcStatus, t.GrpcStatus) {
			c.fail(at+".grpcStatus", t.GrpcStatus, "no gRPC status", suggestion(t.GrpcStatus, grpcStatus))
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error: // the table of unsupported fields has it
	default:
		c.fail(at+".httpStatus", nil, "missing", "set httpStatus or grpcStatus")
	}
}

func (c *checker) cors(at string, p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for i, o := range p.AllowOrigins {
		c.stringMatch(index(at+".allowOrigins", i), o, false)
	}
	for i, m := range p.AllowMethods {
		if m != "*" {
			c.token(index(at+".allowMethods", i), m, "method")
		}
	}
	for i, h := range p.AllowHeaders {
		if h != "*" {
			c.headerName(index(at+".allowHeaders", i), h)
		}
	}
	for i, h := range p.ExposeHeaders {
		if h != "*" {
			c.headerName(index(at+".exposeHeaders", i), h)
		}
	}
	if p.MaxAge != nil {
		c.duration(at+".maxAge", p.MaxAge)
		if p.MaxAge.GetNanos() != 0 {
			c.fail(at+".maxAge", p.MaxAge.AsDuration(), "not a whole number of seconds", "round it")
		}
	}
}

func (c *checker) headers(at string, h *networking.Headers) {
	if h == nil {
		return
	}
	c.headerOperations(at+".request", h.Request)
	c.headerOperations(at+".response", h.Response)
}

func (c *checker) headerOperations(at string, ops *networking.Headers_HeaderOperations) {
	if ops == nil {
		return
	}
	for _, name := range sortedKeys(ops.Set) {
		c.changedHeader(field(at+".set", name), name, ops.Set[name])
	}
	for _, name := range sortedKeys(ops.Add) {
		c.changedHeader(field(at+".add", name), name, ops.Add[name])
	}
	for i, name := range ops.Remove {
		rp := index(at+".remove", i)
		if strings.EqualFold(name, "host") || strings.HasPrefix(name, ":") {
			c.fail(rp, name, "the proxy cannot route without it", "remove another header")
			continue
		}
		c.headerName(rp, name)
	}
}

func (c *checker) changedHeader(at, name, value string) {
	switch {
	case strings.EqualFold(name, ":authority"):
	case strings.HasPrefix(name, ":"):
		c.fail(at, nil, "pseudo-headers cannot be changed", "only :authority can; use rewrite for the path")
	default:
		c.headerName(at, name)
	}
	c.headerValueText(at, value)
	c.substitutions(at, value)
}

// headerValueText refuses characters that would end the header (RFC 9110 §5.5).
func (c *checker) headerValueText(at, s string) {
	if len(s) > maxHeaderValue {
		c.fail(at, nil, "longer than 16 KiB", "shorten it")
	}
	if strings.ContainsAny(s, "\r\n\x00") {
		c.fail(at, s, "contains a line break or a NUL", "remove it")
	}
}

// substitutions checks Envoy's %COMMAND(arg):len% syntax: an unescaped or unknown one makes Envoy refuse the whole route table.
func (c *checker) substitutions(at, s string) {
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			continue
		}
		if strings.HasPrefix(s[i:], "%%") {
			i++
			continue
		}
		n := commandLength(s[i:])
		if n == 0 {
			c.fail(at, s, "a percent sign begins no command such as %REQ(x-id)%", `write "%%" for a percent sign`)
			return
		}
		name := s[i+1 : i+n-1]
		if j := strings.IndexAny(name, "(:"); j >= 0 {
			name = name[:j]
		}
		if !contains(formatCommands, name) {
			c.fail(at, s, "unknown command %"+name+"%", suggestion(name, formatCommands))
			return
		}
		i += n - 1
	}
}

// commandLength returns the length of the command that s begins with, both percent signs included; 0 if there is none.
func commandLength(s string) int {
	i := 1
	for i < len(s) && (s[i] >= 'A' && s[i] <= 'Z' || s[i] >= '0' && s[i] <= '9' || s[i] == '_') {
		i++
	}
	if i == 1 || i >= len(s) {
		return 0
	}
	if s[i] == '(' {
		end := strings.IndexByte(s[i:], ')')
		if end < 0 {
			return 0
		}
		i += end + 1
	}
	if i < len(s) && s[i] == ':' {
		i++
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
	}
	if i < len(s) && s[i] == '%' {
		return i + 1
	}
	return 0
}

// formatCommands are Envoy's substitution commands
// (https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#command-operators).
var formatCommands = []string{
	"ACCESS_LOG_TYPE", "BYTES_RECEIVED", "BYTES_SENT", "CEL", "CLUSTER_METADATA", "COMMON_DURATION", "CONNECTION_ID", "CONNECTION_TERMINATION_DETAILS", "CUSTOM_FLAGS",
	"DOWNSTREAM_DIRECT_LOCAL_ADDRESS", "DOWNSTREAM_DIRECT_REMOTE_ADDRESS", "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_DIRECT_REMOTE_PORT", "DOWNSTREAM_HANDSHAKE_DURATION",
	"DOWNSTREAM_LOCAL_ADDRESS", "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_LOCAL_PORT", "DOWNSTREAM_LOCAL_SUBJECT", "DOWNSTREAM_LOCAL_URI_SAN", "DOWNSTREAM_LOCAL_DNS_SAN",
	"DOWNSTREAM_PEER_CERT", "DOWNSTREAM_PEER_CERT_V_END", "DOWNSTREAM_PEER_CERT_V_START", "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256", "DOWNSTREAM_PEER_DNS_SAN", "DOWNSTREAM_PEER_FINGERPRINT_1",
	"DOWNSTREAM_PEER_FINGERPRINT_256", "DOWNSTREAM_PEER_ISSUER", "DOWNSTREAM_PEER_IP_SAN", "DOWNSTREAM_PEER_SERIAL", "DOWNSTREAM_PEER_SUBJECT", "DOWNSTREAM_PEER_URI_SAN",
	"DOWNSTREAM_REMOTE_ADDRESS", "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_REMOTE_PORT", "DOWNSTREAM_TLS_CIPHER", "DOWNSTREAM_TLS_SESSION_ID", "DOWNSTREAM_TLS_VERSION",
	"DOWNSTREAM_TRANSPORT_FAILURE_REASON", "DURATION", "DYNAMIC_METADATA", "EMIT_TIME", "ENVIRONMENT", "FILTER_CHAIN_NAME", "FILTER_STATE", "GRPC_STATUS", "GRPC_STATUS_NUMBER", "HOSTNAME",
	"LISTENER_METADATA", "LOCAL_REPLY_BODY", "METADATA", "PATH", "PER_REQUEST_STATE", "PROTOCOL", "QUERY_PARAM", "QUERY_PARAMS", "REQ", "REQUESTED_SERVER_NAME", "REQUEST_DURATION", "REQUEST_HEADER",
	"REQUEST_TX_DURATION", "RESP", "RESPONSE_CODE", "RESPONSE_CODE_DETAILS", "RESPONSE_DURATION", "RESPONSE_FLAGS", "RESPONSE_FLAGS_LONG", "RESPONSE_TX_DURATION", "ROUNDTRIP_DURATION",
	"ROUTE_METADATA", "ROUTE_NAME", "START_TIME", "START_TIME_LOCAL", "STREAM_ID", "TLS_JA3_FINGERPRINT", "TLS_JA4_FINGERPRINT", "TRACE_ID", "TRAILER", "UNIQUE_ID", "UPSTREAM_CLUSTER",
	"UPSTREAM_CLUSTER_RAW", "UPSTREAM_CONNECTION_ID", "UPSTREAM_HOST", "UPSTREAM_HOST_NAME", "UPSTREAM_HOST_NAME_WITHOUT_PORT", "UPSTREAM_LOCAL_ADDRESS", "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
	"UPSTREAM_LOCAL_PORT", "UPSTREAM_METADATA", "UPSTREAM_PEER_SUBJECT", "UPSTREAM_PEER_URI_SAN", "UPSTREAM_PROTOCOL", "UPSTREAM_REMOTE_ADDRESS", "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
	"UPSTREAM_REMOTE_PORT", "UPSTREAM_REQUEST_ATTEMPT_COUNT", "UPSTREAM_TLS_CIPHER", "UPSTREAM_TLS_VERSION", "UPSTREAM_TRANSPORT_FAILURE_REASON", "VIRTUAL_CLUSTER_NAME",
}
