package route

import (
	"fmt"
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	networking "istio.io/api/networking/v1alpha3"
)

// percent keeps four decimal places of a percentage.
func percent(value float64) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: uint32(math.Round(value * 10_000)), Denominator: typev3.FractionalPercent_MILLION}
}

func runtimeFraction(p *typev3.FractionalPercent) *corev3.RuntimeFractionalPercent {
	return &corev3.RuntimeFractionalPercent{DefaultValue: p}
}

// fault converts a fault injection. As in Istio, a delay or an abort without a percentage applies to no request, and
// one without a type does nothing.
func fault(in *networking.HTTPFaultInjection) (*faultv3.HTTPFault, error) {
	out := &faultv3.HTTPFault{}
	if delay := in.GetDelay(); delay.GetHttpDelayType() != nil {
		fixed, ok := delay.GetHttpDelayType().(*networking.HTTPFaultInjection_Delay_FixedDelay)
		if !ok {
			return nil, fmt.Errorf("delay: only fixedDelay is supported")
		}
		if err := validateDuration(fixed.FixedDelay); err != nil {
			return nil, fmt.Errorf("delay.fixedDelay: %w", err)
		}
		share := percent(delay.GetPercentage().GetValue())
		if delay.GetPercentage() == nil {
			share = percent(float64(delay.GetPercent())) //nolint:staticcheck // deprecated in Istio, still accepted
		}
		out.Delay = &commonfaultv3.FaultDelay{
			Percentage:         share,
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: fixed.FixedDelay},
		}
	}
	if abort := in.GetAbort(); abort.GetErrorType() != nil {
		out.Abort = &faultv3.FaultAbort{Percentage: percent(abort.GetPercentage().GetValue())}
		switch e := abort.GetErrorType().(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			out.Abort.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(e.HttpStatus)} //nolint:gosec // range is Envoy's to check
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			code, err := grpcStatus(e.GrpcStatus)
			if err != nil {
				return nil, fmt.Errorf("abort.grpcStatus: %w", err)
			}
			out.Abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: uint32(code)}
		default:
			return nil, fmt.Errorf("abort: httpStatus or grpcStatus is required")
		}
	}
	return out, nil
}

func grpcStatus(name string) (codes.Code, error) {
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(strconv.Quote(name))); err != nil {
		return 0, fmt.Errorf("%q is no gRPC status, use a name such as UNAVAILABLE", name)
	}
	return code, nil
}
