package route

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
	"fairlead.dev/services/xds-server/internal/translate/undelivered"
)

// Istio's default: a request that failed before the application saw it is retried twice, on other hosts.
const (
	defaultAttempts   = 2
	defaultRetryOn    = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
	statusCodesPolicy = "retriable-status-codes"
	// hostSelectionAttempts limits the search for a host that has not been tried yet. Of two hosts, one of which has
	// just failed many requests at once, LEAST_REQUEST prefers that one: Istio's 5 attempts find no other in one of six
	// retries, and the gateway of another network is one host for all behind it.
	hostSelectionAttempts = 32
	// priorityUpdateFrequency is the number of retries between two computations of the priorities.
	priorityUpdateFrequency = 2
)

// retryPolicy converts a retry policy; nil means that neither the route nor
// MeshConfig's defaultHttpRetryPolicy sets one, and so Istio's default; attempts 0 means no retries. Requests that a
// consistent hash binds to one host are retried on that host.
func retryPolicy(in *networking.HTTPRetry, hashed bool) *routev3.RetryPolicy {
	if in != nil && in.GetAttempts() <= 0 {
		return nil
	}
	out := &routev3.RetryPolicy{
		NumRetries:                    wrapperspb.UInt32(defaultAttempts),
		RetryOn:                       defaultRetryOn,
		HostSelectionRetryMaxAttempts: hostSelectionAttempts,
	}
	avoidPrevious := !hashed
	if in != nil {
		out.NumRetries = wrapperspb.UInt32(uint32(in.GetAttempts())) //nolint:gosec // positive, checked above
		out.PerTryTimeout = in.GetPerTryTimeout()
		if in.GetRetryOn() != "" {
			out.RetryOn, out.RetriableStatusCodes = retryConditions(in.GetRetryOn())
		}
		if in.GetRetryIgnorePreviousHosts() != nil {
			avoidPrevious = in.GetRetryIgnorePreviousHosts().GetValue()
		}
		if in.GetRetryRemoteLocalities().GetValue() {
			out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
				Name: "envoy.retry_priorities.previous_priorities",
				ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: typedconfig.Any(
					&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: priorityUpdateFrequency})},
			}
		}
		if in.GetBackoff() != nil {
			out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: in.GetBackoff()}
		}
	}
	undelivered.Retry(out)
	if avoidPrevious {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: typedconfig.Any(&previoushostsv3.PreviousHostsPredicate{}),
			},
		}}
	}
	return out
}

// retryConditions splits Istio's list into Envoy's conditions and status codes.
func retryConditions(list string) (conditions string, codes []uint32) {
	var words []string
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		if code, err := strconv.Atoi(word); err == nil && code > 0 {
			codes = append(codes, uint32(code)) //nolint:gosec // refused by validation if it is no status
			continue
		}
		words = append(words, word)
	}
	if len(codes) > 0 && !slices.Contains(words, statusCodesPolicy) {
		words = append(words, statusCodesPolicy)
	}
	return strings.Join(words, ","), codes
}
