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
	for cond := range strings.SplitSeq(r.RetryOn, ",") {
		cond = strings.TrimSpace(cond)
		if n, err := strconv.Atoi(cond); err == nil {
			if n < 100 || n > 599 {
				c.fail(at+".retryOn", cond, "no HTTP status", "use 100 to 599")
			}
			continue
		}
		if !contains(retryOn, cond) {
			c.fail(at+".retryOn", cond, "unknown retry condition", suggestion(cond, retryOn)+" Divide conditions by commas")
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
		old := d.Percent
		c.percent(dp+".percent", float64(old))
		if d.Percentage != nil {
			c.percent(dp+".percentage.value", d.Percentage.Value)
			if old != 0 {
				c.fail(dp+".percent", old, "cannot be set together with percentage", "keep percentage")
			}
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
	//nolint:staticcheck // deprecated in Istio, still served
	if old := p.AllowOrigin; len(old) > 0 {
		if len(p.AllowOrigins) > 0 {
			c.fail(at+".allowOrigin", nil, "cannot be set together with allowOrigins", "keep allowOrigins")
		}
		for i, o := range old {
			c.matchText(index(at+".allowOrigin", i), o)
		}
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
