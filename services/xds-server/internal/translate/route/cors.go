package route

import (
	"fmt"
	"strconv"
	"strings"

	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/matcher"
)

func cors(in *networking.CorsPolicy) (*corsv3.CorsPolicy, error) {
	out := &corsv3.CorsPolicy{
		AllowMethods:     strings.Join(in.GetAllowMethods(), ","),
		AllowHeaders:     strings.Join(in.GetAllowHeaders(), ","),
		ExposeHeaders:    strings.Join(in.GetExposeHeaders(), ","),
		AllowCredentials: in.GetAllowCredentials(),
		FilterEnabled:    runtimeFraction(percent(100)),
		ForwardNotMatchingPreflights: wrapperspb.Bool(
			in.GetUnmatchedPreflights() != networking.CorsPolicy_IGNORE),
	}
	for i, origin := range in.GetAllowOrigins() {
		m, err := matcher.String(origin)
		if err != nil {
			return nil, fmt.Errorf("allowOrigins[%d]: %w", i, err)
		}
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, m)
	}
	if len(in.GetAllowOrigins()) == 0 {
		for _, origin := range in.GetAllowOrigin() { //nolint:staticcheck // deprecated in Istio, still accepted
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, matcher.Exact(origin))
		}
	}
	if in.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(in.GetMaxAge().GetSeconds(), 10)
	}
	return out, nil
}
