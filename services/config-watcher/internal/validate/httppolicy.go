package validate

import (
	nethttp "net/http"
	"slices"
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
	c.failIf(r.Attempts < 0, at+".attempts", r.Attempts, "negative", "use 0 to switch retries off, or a positive number")
	if r.Attempts == 0 {
		switch {
		case r.PerTryTimeout != nil, r.RetryOn != "", r.RetryRemoteLocalities != nil:
			c.fail(at+".attempts", nil, "retries are switched off (attempts 0) but configured", "set attempts, or remove the other fields")
		case r.Backoff != nil, r.RetryIgnorePreviousHosts != nil:
			c.warn(at, verdict{"retries are switched off (attempts 0)", "set attempts, or remove the other fields"})
		}
	}
	c.duration(at+".perTryTimeout", r.PerTryTimeout)
	c.duration(at+".backoff", r.Backoff)
	if r.RetryOn == "" {
		return
	}
	for cond := range strings.SplitSeq(r.RetryOn, ",") {
		code, err := strconv.Atoi(cond)
		switch trimmed := strings.TrimSpace(cond); {
		case err == nil && nethttp.StatusText(code) == "":
			c.fail(at+".retryOn", cond, "no HTTP status that is known", "use one that RFC 9110 or another has assigned, such as 503")
		case err == nil, slices.Contains(retryOn, cond):
		case trimmed != cond:
			c.fail(at+".retryOn", cond, "has a space", "divide conditions by commas alone")
		default:
			c.fail(at+".retryOn", cond, "unknown retry condition", suggestion(cond, retryOn)+" Divide conditions by commas")
		}
	}
}

// grpcStatus are the names of gRPC's status codes.
var grpcStatus = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
	"UNAUTHENTICATED"}

func (c *checker) fault(at string, f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	c.failIf(f.Delay == nil && f.Abort == nil, at, nil, "fault does nothing", "set delay or abort")
	if f.Delay != nil {
		c.delay(at+".delay", f.Delay)
	}
	if f.Abort != nil {
		c.abort(at+".abort", f.Abort)
	}
}

func (c *checker) delay(at string, d *networking.HTTPFaultInjection_Delay) {
	//nolint:staticcheck // deprecated in Istio, still served
	old := d.Percent
	switch {
	case old < 0:
		c.fail(at+".percent", old, "not a percentage", "use 0 to 100")
	case old > 100:
		c.remark(at+".percent", "more than 100 counts as 100", "use 0 to 100")
	}
	c.faultPercentage(at, d.Percentage)
	switch {
	case d.Percentage != nil && old != 0:
		c.warn(at+".percent", verdict{"percentage comes before it", "remove it"})
	case d.Percentage == nil && old == 0:
		c.warn(at, verdict{"without a percentage it strikes nobody", "set percentage"})
	}
	switch t := d.HttpDelayType.(type) {
	case *networking.HTTPFaultInjection_Delay_FixedDelay:
		c.duration(at+".fixedDelay", t.FixedDelay)
	case *networking.HTTPFaultInjection_Delay_ExponentialDelay: // listed as unsupported
	default:
		c.warn(at, verdict{"no delay is set", `set fixedDelay, like "5s"`})
	}
}

func (c *checker) abort(at string, a *networking.HTTPFaultInjection_Abort) {
	c.faultPercentage(at, a.Percentage)
	c.warnIf(a.Percentage == nil, at, verdict{"without a percentage it strikes nobody", "set percentage"})
	switch t := a.ErrorType.(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		c.failIf(t.HttpStatus < 200 || t.HttpStatus > 599, at+".httpStatus", t.HttpStatus, "no final HTTP status", "use 200 to 599")
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if !slices.Contains(grpcStatus, t.GrpcStatus) {
			c.fail(at+".grpcStatus", t.GrpcStatus, "no gRPC status", suggestion(t.GrpcStatus, grpcStatus))
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error: // listed as unsupported
	default:
		c.warn(at, verdict{"no error is set", "set httpStatus or grpcStatus"})
	}
}

// faultPercentage checks the share of requests that a fault applies to, which Envoy counts in millionths.
func (c *checker) faultPercentage(at string, p *networking.Percent) {
	if p == nil {
		return
	}
	c.percent(at+".percentage.value", p.Value)
	c.failIf(p.Value > 0 && p.Value < 0.0001, at+".percentage.value", p.Value, "less than a millionth of the requests",
		"use 0, or at least 0.0001")
}

// corsMethods are the methods that Istio's webhook accepts: all of HTTP's.
var corsMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"}

func (c *checker) cors(at string, p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for op, o := range each(at+".allowOrigins", p.AllowOrigins) {
		if o.GetExact()+o.GetPrefix()+o.GetRegex() == "" {
			c.fail(op, nil, "match is empty", "set exact, prefix or regex")
			continue
		}
		c.stringMatch(op, o)
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if old := p.AllowOrigin; len(old) > 0 {
		c.warnIf(len(p.AllowOrigins) > 0, at+".allowOrigin", verdict{"allowOrigins comes before it", "remove it"})
		for i, o := range old {
			c.matchText(index(at+".allowOrigin", i), o)
		}
	}
	for i, m := range p.AllowMethods {
		if !slices.Contains(corsMethods, m) {
			c.fail(index(at+".allowMethods", i), m, "no method of HTTP", suggestion(m, corsMethods))
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
		c.failIf(p.MaxAge.GetNanos() != 0, at+".maxAge", p.MaxAge.AsDuration(), "not a whole number of seconds", "round it")
	}
}
