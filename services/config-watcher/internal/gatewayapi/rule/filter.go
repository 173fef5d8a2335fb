package rule

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// filter applies a filter of a rule.
func (b *body) filter(f *gatewayv1.HTTPRouteFilter) *Problem {
	switch {
	case f.Type == gatewayv1.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
		return b.redirect(f.RequestRedirect)
	case f.Type == gatewayv1.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
		return b.rewrite(f.URLRewrite)
	case f.Type == gatewayv1.HTTPRouteFilterRequestMirror && f.RequestMirror != nil:
		return b.mirror(f.RequestMirror)
	case f.Type == gatewayv1.HTTPRouteFilterCORS && f.CORS != nil:
		b.CorsPolicy = cors(f.CORS)
		return nil
	default:
		return modify(&b.Headers, f, "remove it")
	}
}

// backendFilter applies a filter of a backend. Istio's API has no rewrite for a destination: it is put into own, or is
// that of the rule if there is no other backend.
func (b *body) backendFilter(d *networking.HTTPRouteDestination, own *configv1.BackendRewrite, f *gatewayv1.HTTPRouteFilter,
	only bool,
) *Problem {
	if f.Type != gatewayv1.HTTPRouteFilterURLRewrite || f.URLRewrite == nil {
		return modify(&d.Headers, f, "put it on the rule")
	}
	if b.Rewrite != nil {
		return unsupported("filter %s of a backend is not supported where the rule has one; remove one of them", f.Type)
	}
	if only {
		return b.rewrite(f.URLRewrite)
	}
	rewrite, prefix, p := rewriteOf(f.URLRewrite)
	if p != nil {
		return p
	}
	var err error
	if own.Rewrite, err = resource.Any(rewrite); err != nil {
		return unsupported("filter %s cannot be encoded: %v", f.Type, err)
	}
	own.PrefixRewrite = prefix
	return nil
}

// modify applies a filter that changes headers. Others are a problem.
func modify(to **networking.Headers, f *gatewayv1.HTTPRouteFilter, remedy string) *Problem {
	request := f.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil
	response := f.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil
	if !request && !response {
		return unsupported("filter %s is not supported here; %s", f.Type, remedy)
	}
	if *to == nil {
		*to = &networking.Headers{}
	}
	if request {
		(*to).Request = operations((*to).Request, f.RequestHeaderModifier)
	} else {
		(*to).Response = operations((*to).Response, f.ResponseHeaderModifier)
	}
	return nil
}

func operations(out *networking.Headers_HeaderOperations, in *gatewayv1.HTTPHeaderFilter) *networking.Headers_HeaderOperations {
	if out == nil {
		out = &networking.Headers_HeaderOperations{}
	}
	put := func(to *map[string]string, from []gatewayv1.HTTPHeader) {
		for _, h := range from {
			if *to == nil {
				*to = map[string]string{}
			}
			// Of several entries for one name the first counts, as the specification says.
			if _, ok := (*to)[string(h.Name)]; !ok {
				(*to)[string(h.Name)] = h.Value
			}
		}
	}
	put(&out.Set, in.Set)
	put(&out.Add, in.Add)
	out.Remove = append(out.Remove, in.Remove...)
	return out
}

// exclusive reports filters that exclude each other.
func (b *body) exclusive() *Problem {
	if b.Redirect != nil && b.Rewrite != nil {
		return &Problem{Incompatible: true, Message: "filters RequestRedirect and URLRewrite exclude each other"}
	}
	return nil
}

func (b *body) redirect(in *gatewayv1.HTTPRequestRedirectFilter) *Problem {
	out := &networking.HTTPRedirect{}
	if in.Scheme != nil {
		out.Scheme = *in.Scheme
	}
	if in.Hostname != nil {
		out.Authority = string(*in.Hostname)
	}
	switch {
	case in.Port != nil:
		out.RedirectPort = &networking.HTTPRedirect_Port{Port: uint32(*in.Port)} //nolint:gosec // a port
	case in.Scheme != nil:
		out.RedirectPort = &networking.HTTPRedirect_DerivePort{DerivePort: networking.HTTPRedirect_FROM_PROTOCOL_DEFAULT}
	default:
		out.RedirectPort = &networking.HTTPRedirect_DerivePort{DerivePort: networking.HTTPRedirect_FROM_REQUEST_PORT}
	}
	out.RedirectCode = 302
	if in.StatusCode != nil {
		out.RedirectCode = uint32(*in.StatusCode) //nolint:gosec // a status
	}
	switch out.RedirectCode {
	case 301, 302, 303, 307, 308:
	default:
		return unsupported("requestRedirect.statusCode: %d is not supported; use 301, 302, 303, 307 or 308", out.RedirectCode)
	}
	b.Redirect = out
	full, replaced, p := pathModifier(in.Path)
	if full != nil {
		out.Uri = *full
	}
	b.rule.PrefixRedirect = replaced
	return p
}

func pathModifier(in *gatewayv1.HTTPPathModifier) (full, replaced *string, p *Problem) {
	switch {
	case in == nil:
	case in.Type == gatewayv1.FullPathHTTPPathModifier && in.ReplaceFullPath != nil:
		return in.ReplaceFullPath, nil, nil
	case in.Type == gatewayv1.PrefixMatchHTTPPathModifier && in.ReplacePrefixMatch != nil:
		return nil, in.ReplacePrefixMatch, nil
	default:
		return nil, nil, unsupported("path.type: %q is not supported; use ReplaceFullPath or ReplacePrefixMatch", in.Type)
	}
	return nil, nil, nil
}

func (b *body) rewrite(in *gatewayv1.HTTPURLRewriteFilter) (p *Problem) {
	b.Rewrite, b.rule.PrefixRewrite, p = rewriteOf(in)
	return p
}

// rewriteOf returns what replaces host and path; prefix replaces the part that the match has matched, nil for none.
func rewriteOf(in *gatewayv1.HTTPURLRewriteFilter) (out *networking.HTTPRewrite, prefix *string, p *Problem) {
	out = &networking.HTTPRewrite{}
	if in.Hostname != nil {
		out.Authority = string(*in.Hostname)
	}
	full, prefix, p := pathModifier(in.Path)
	if full != nil {
		out.UriRegexRewrite = &networking.RegexRewrite{Match: "/.*", Rewrite: strings.ReplaceAll(*full, `\`, `\\`)}
	}
	return out, prefix, p
}

func (b *body) mirror(in *gatewayv1.HTTPRequestMirrorFilter) *Problem {
	host, port, ok := b.backends(&in.BackendRef)
	if !ok {
		return nil // a mirror that cannot be resolved is left out; the condition ResolvedRefs says so
	}
	out := &networking.HTTPMirrorPolicy{Destination: &networking.Destination{Host: host, Port: &networking.PortSelector{Number: port}}}
	switch {
	case in.Percent != nil:
		out.Percentage = &networking.Percent{Value: float64(*in.Percent)}
	case in.Fraction != nil:
		of := int32(100)
		if in.Fraction.Denominator != nil {
			of = *in.Fraction.Denominator
		}
		if of <= 0 {
			return unsupported("requestMirror.fraction.denominator: %d is not positive", of)
		}
		out.Percentage = &networking.Percent{Value: 100 * float64(in.Fraction.Numerator) / float64(of)}
	}
	b.Mirrors = append(b.Mirrors, out)
	return nil
}

// maxAge is the default of CORS's maxAge.
const maxAge = 5

// everyOrigin matches origins as RFC 6454 writes them, of any scheme and host.
const everyOrigin = `[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s?#]+`

func cors(in *gatewayv1.HTTPCORSFilter) *networking.CorsPolicy {
	out := &networking.CorsPolicy{UnmatchedPreflights: networking.CorsPolicy_IGNORE}
	for _, o := range in.AllowOrigins {
		origin := string(o)
		var m *networking.StringMatch
		switch {
		case origin == "*":
			m = &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: everyOrigin}}
		case strings.Contains(origin, "*"):
			pattern := strings.ReplaceAll(regexp.QuoteMeta(origin), `\*`, ".*")
			m = &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: pattern}}
		default:
			m = exact(origin)
		}
		out.AllowOrigins = append(out.AllowOrigins, m)
	}
	for _, m := range in.AllowMethods {
		out.AllowMethods = append(out.AllowMethods, string(m))
	}
	for _, h := range in.AllowHeaders {
		out.AllowHeaders = append(out.AllowHeaders, string(h))
	}
	for _, h := range in.ExposeHeaders {
		out.ExposeHeaders = append(out.ExposeHeaders, string(h))
	}
	if in.AllowCredentials != nil && *in.AllowCredentials {
		out.AllowCredentials = wrapperspb.Bool(true)
	}
	age := in.MaxAge
	if age == 0 {
		age = maxAge
	}
	out.MaxAge = durationpb.New(time.Duration(age) * time.Second)
	return out
}

// timeouts sets timeouts and retries. A backend's timeout is that of one try, so without retries it bounds the request.
func (b *body) timeouts(in *gatewayv1.HTTPRouteTimeouts, retry *gatewayv1.HTTPRouteRetry) *Problem {
	var request, try time.Duration
	if in != nil {
		var p *Problem
		if request, p = duration("timeouts.request", in.Request); p != nil {
			return p
		}
		if try, p = duration("timeouts.backendRequest", in.BackendRequest); p != nil {
			return p
		}
	}
	if p := b.retry(retry); p != nil {
		return p
	}
	switch {
	case try == 0:
	case b.Retries.GetAttempts() > 0:
		b.Retries.PerTryTimeout = durationpb.New(try)
	case request == 0 || try < request:
		request = try
	}
	if request > 0 {
		b.Timeout = durationpb.New(request)
	}
	return nil
}

// connectionErrors are what a rule with retries repeats in addition to the codes that it lists: disconnects, resets,
// timeouts of a try, failures to connect.
const connectionErrors = "connect-failure,refused-stream,reset"

func (b *body) retry(in *gatewayv1.HTTPRouteRetry) *Problem {
	if in == nil {
		return nil
	}
	attempts := 1
	if in.Attempts != nil {
		attempts = *in.Attempts
	}
	if attempts < 0 || attempts > math.MaxInt32 {
		return unsupported("retry.attempts: %d is not supported", attempts)
	}
	out := &networking.HTTPRetry{Attempts: int32(attempts)}
	if attempts > 0 {
		out.RetryOn = connectionErrors
		for _, code := range in.Codes {
			out.RetryOn += "," + strconv.Itoa(int(code))
		}
		backoff, p := duration("retry.backoff", in.Backoff)
		if p != nil {
			return p
		}
		if backoff > 0 {
			out.Backoff = durationpb.New(backoff)
		}
	}
	b.Retries = out
	return nil
}

func duration(field string, in *gatewayv1.Duration) (time.Duration, *Problem) {
	if in == nil {
		return 0, nil
	}
	d, err := time.ParseDuration(string(*in))
	if err != nil || d < 0 {
		return 0, unsupported("%s: %q is no duration such as 1m30s", field, *in)
	}
	return d, nil
}
