package networking

import (
	nethttp "net/http"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// retryOn lists Envoy's retry conditions, HTTP's and gRPC's
// (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter).
var retryOn = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx", "refused-stream",
	"retriable-status-codes", "retriable-headers", "http3-post-connect-failure", "cancelled", "deadline-exceeded", "internal",
	"resource-exhausted", "unavailable",
}

// Retries checks how often, and upon what, a request is tried again.
func (c Checker) Retries(at string, r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	c.FailIf(r.Attempts < 0, at+".attempts", r.Attempts, "negative", "use 0 to switch retries off, or a positive number")
	if r.Attempts == 0 {
		switch {
		case r.PerTryTimeout != nil, r.RetryOn != "", r.RetryRemoteLocalities != nil:
			c.Fail(at+".attempts", nil, "retries are switched off (attempts 0) but configured", "set attempts, or remove the other fields")
		case r.Backoff != nil, r.RetryIgnorePreviousHosts != nil:
			c.Warn(at, "retries are switched off (attempts 0)", "set attempts, or remove the other fields")
		}
	}
	c.Duration(at+".perTryTimeout", r.PerTryTimeout)
	c.Duration(at+".backoff", r.Backoff)
	if r.RetryOn == "" {
		return
	}
	for cond := range strings.SplitSeq(r.RetryOn, ",") {
		code, err := strconv.Atoi(cond)
		switch trimmed := strings.TrimSpace(cond); {
		case err == nil && nethttp.StatusText(code) == "":
			c.Fail(at+".retryOn", cond, "no HTTP status that is known", "use one that RFC 9110 or another has assigned, such as 503")
		case err == nil, slices.Contains(retryOn, cond):
		case trimmed != cond:
			c.Fail(at+".retryOn", cond, "has a space", "divide conditions by commas alone")
		default:
			c.Fail(at+".retryOn", cond, "unknown retry condition", decode.Suggest(cond, retryOn)+" Divide conditions by commas")
		}
	}
}

// grpcStatus are the names of gRPC's status codes.
var grpcStatus = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
	"UNAUTHENTICATED"}

func (c Checker) fault(at string, f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	c.FailIf(f.Delay == nil && f.Abort == nil, at, nil, "fault does nothing", "set delay or abort")
	if f.Delay != nil {
		c.delay(at+".delay", f.Delay)
	}
	if f.Abort != nil {
		c.abort(at+".abort", f.Abort)
	}
}

func (c Checker) delay(at string, d *networking.HTTPFaultInjection_Delay) {
	//nolint:staticcheck // deprecated in Istio, still served
	old := d.Percent
	switch {
	case old < 0:
		c.Fail(at+".percent", old, "not a percentage", "use 0 to 100")
	case old > 100:
		c.Remark(at+".percent", "more than 100 counts as 100", "use 0 to 100")
	}
	c.faultPercentage(at, d.Percentage)
	switch {
	case d.Percentage != nil && old != 0:
		c.Warn(at+".percent", "percentage comes before it", "remove it")
	case d.Percentage == nil && old == 0:
		c.Warn(at, "without a percentage it strikes nobody", "set percentage")
	}
	switch t := d.HttpDelayType.(type) {
	case *networking.HTTPFaultInjection_Delay_FixedDelay:
		c.Duration(at+".fixedDelay", t.FixedDelay)
	case *networking.HTTPFaultInjection_Delay_ExponentialDelay: // listed as unsupported
	default:
		c.Warn(at, "no delay is set", `set fixedDelay, like "5s"`)
	}
}

func (c Checker) abort(at string, a *networking.HTTPFaultInjection_Abort) {
	c.faultPercentage(at, a.Percentage)
	c.WarnIf(a.Percentage == nil, at, "without a percentage it strikes nobody", "set percentage")
	switch t := a.ErrorType.(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		c.FailIf(t.HttpStatus < 200 || t.HttpStatus > 599, at+".httpStatus", t.HttpStatus, "no final HTTP status", "use 200 to 599")
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if !slices.Contains(grpcStatus, t.GrpcStatus) {
			c.Fail(at+".grpcStatus", t.GrpcStatus, "no gRPC status", decode.Suggest(t.GrpcStatus, grpcStatus))
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error: // listed as unsupported
	default:
		c.Warn(at, "no error is set", "set httpStatus or grpcStatus")
	}
}

// faultPercentage checks the share of requests that a fault applies to, which Envoy counts in millionths.
func (c Checker) faultPercentage(at string, p *networking.Percent) {
	if p == nil {
		return
	}
	c.Percent(at+".percentage.value", p.Value)
	c.FailIf(p.Value > 0 && p.Value < 0.0001, at+".percentage.value", p.Value, "less than a millionth of the requests",
		"use 0, or at least 0.0001")
}

// corsMethods are the methods that Istio's webhook accepts: all of HTTP's.
var corsMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"}

func (c Checker) cors(at string, p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for op, o := range manifest.Items(at+".allowOrigins", p.AllowOrigins) {
		if o.GetExact()+o.GetPrefix()+o.GetRegex() == "" {
			c.Fail(op, nil, "match is empty", "set exact, prefix or regex")
			continue
		}
		c.stringMatch(op, o)
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if old := p.AllowOrigin; len(old) > 0 {
		c.WarnIf(len(p.AllowOrigins) > 0, at+".allowOrigin", "allowOrigins comes before it", "remove it")
		for i, o := range old {
			c.MatchText(manifest.Index(at+".allowOrigin", i), o)
		}
	}
	for i, m := range p.AllowMethods {
		if !slices.Contains(corsMethods, m) {
			c.Fail(manifest.Index(at+".allowMethods", i), m, "no method of HTTP", decode.Suggest(m, corsMethods))
		}
	}
	for i, h := range p.AllowHeaders {
		if h != "*" {
			c.headerName(manifest.Index(at+".allowHeaders", i), h)
		}
	}
	for i, h := range p.ExposeHeaders {
		if h != "*" {
			c.headerName(manifest.Index(at+".exposeHeaders", i), h)
		}
	}
	if p.MaxAge != nil {
		c.Duration(at+".maxAge", p.MaxAge)
		c.FailIf(p.MaxAge.GetNanos() != 0, at+".maxAge", p.MaxAge.AsDuration(), "not a whole number of seconds", "round it")
	}
}
