package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

// outlierDetection ejects hosts by consecutive errors only. As in Istio, Envoy's statistical ejection is off. Fields
// that the DestinationRule leaves out stay unset, so Envoy's own defaults hold.
func outlierDetection(out *clusterv3.Cluster, options *httpOptions, in *networking.OutlierDetection) {
	if in == nil {
		return
	}
	detection := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: wrapperspb.UInt32(0),
		Interval:             in.GetInterval(),
		BaseEjectionTime:     in.GetBaseEjectionTime(),
		MaxEjectionPercent:   positive(in.GetMaxEjectionPercent()),
	}
	if detection.MaxEjectionPercent == nil {
		// Envoy's own limit of 10 % would let no host of a service of less than ten be ejected, and so no locality fail
		// over: Istio's guide of locality failover has one host in each.
		detection.AlwaysEjectOneHost = wrapperspb.Bool(true)
	}
	detection.Consecutive_5Xx, detection.EnforcingConsecutive_5Xx = consecutive(in.GetConsecutive_5XxErrors())
	gateway := in.GetConsecutiveGatewayErrors()
	if old := positive(in.GetConsecutiveErrors()); gateway == nil { //nolint:staticcheck // deprecated in Istio, still accepted
		gateway = old
	}
	detection.ConsecutiveGatewayFailure, detection.EnforcingConsecutiveGatewayFailure = consecutive(gateway)
	options.errors = in.GetOutlierDetectionHttpErrorCodes()
	if in.GetSplitExternalLocalOriginErrors() {
		detection.SplitExternalLocalOriginErrors = true
		detection.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
		if n := in.GetConsecutiveLocalOriginFailures(); n.GetValue() > 0 {
			detection.ConsecutiveLocalOriginFailure, detection.EnforcingConsecutiveLocalOriginFailure = consecutive(n)
		}
	}
	out.OutlierDetection = detection
	// Below this share of healthy hosts Envoy would use the ejected ones again, which is never wanted for services of a
	// few Pods.
	out.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{Value: float64(max(in.GetMinHealthPercent(), 0))}
}

// consecutive returns the number of errors and the percentage of enforced ejections; 0 errors switch the detector off.
func consecutive(n *wrapperspb.UInt32Value) (count, enforcing *wrapperspb.UInt32Value) {
	switch {
	case n == nil:
		return nil, nil
	case n.GetValue() == 0:
		return wrapperspb.UInt32(0), wrapperspb.UInt32(0)
	default:
		return wrapperspb.UInt32(n.GetValue()), wrapperspb.UInt32(100)
	}
}
