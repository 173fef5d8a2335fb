package route

import (
	"fmt"
	"math"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// maxDirectResponseBody is the largest directResponse body that Istio accepts. Route configurations set it as
	// Envoy's limit.
	maxDirectResponseBody = 1 << 20
	// maxDuration is the longest duration in seconds that Envoy accepts: its nanoseconds have to fit 64 bits.
	maxDuration = (math.MaxInt64/int64(time.Second) - 1) * int64(time.Second)
)

// validate returns an error for a route that Envoy would reject, together with the whole route configuration: by the
// rules of its schema, and by limits that the schema does not state.
func validate(route *routev3.Route) error {
	if err := route.ValidateAll(); err != nil {
		return err
	}
	body := route.GetDirectResponse().GetBody()
	if n := max(len(body.GetInlineString()), len(body.GetInlineBytes())); n > maxDirectResponseBody {
		return fmt.Errorf("directResponse.body: %d bytes, the limit is %d", n, maxDirectResponseBody)
	}
	action := route.GetRoute()
	for _, part := range []struct {
		field string
		value *durationpb.Duration
	}{
		{"timeout", action.GetTimeout()},
		{"retries.perTryTimeout", action.GetRetryPolicy().GetPerTryTimeout()},
		{"retries.backoff", action.GetRetryPolicy().GetRetryBackOff().GetBaseInterval()},
	} {
		if err := validateDuration(part.value); err != nil {
			return fmt.Errorf("%s: %w", part.field, err)
		}
	}
	for _, policy := range action.GetHashPolicy() {
		if err := validateDuration(policy.GetCookie().GetTtl()); err != nil {
			return fmt.Errorf("consistentHash.httpCookie.ttl: %w", err)
		}
	}
	if sum := weights(action.GetWeightedClusters()); sum > math.MaxUint32 {
		return fmt.Errorf("route: the weights add up to %d, the limit is %d", sum, uint32(math.MaxUint32))
	}
	return nil
}

// validateDuration returns an error for a duration that Envoy would reject; nil is valid.
func validateDuration(d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if err := d.CheckValid(); err != nil {
		return err
	}
	if d.GetSeconds() < 0 || d.GetNanos() < 0 || d.GetSeconds() > maxDuration/int64(time.Second) {
		return fmt.Errorf("%v is out of range, use 0s to %v", d.AsDuration(), time.Duration(maxDuration))
	}
	return nil
}

func weights(in *routev3.WeightedCluster) uint64 {
	var sum uint64
	for _, c := range in.GetClusters() {
		sum += uint64(c.GetWeight().GetValue())
	}
	return sum
}
