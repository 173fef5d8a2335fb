package proxystatus

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestRefusalsFollowTheTable(t *testing.T) {
	var out strings.Builder
	err := printRefusals(&out, &configv1.ListProxiesResponse{Refusals: []*configv1.Refusal{
		{NodeId: "sidecar~10.0.0.1~web-0.apps~apps.svc.cluster.local", XdsServer: "x0", Budget: "names", Reason: "too many", Count: 3,
			At: timestamppb.New(time.Unix(0, 0))},
		{XdsServer: "x0", Budget: "streams", Reason: "one too many", Count: 1, At: timestamppb.New(time.Unix(0, 0))},
	}})
	const want = "\nREFUSED web-0.apps by x0, 3 times, last at 1970-01-01T00:00:00Z, for names: too many\n" +
		"\nREFUSED a proxy that has not said its name by x0, 1 times, last at 1970-01-01T00:00:00Z, for streams: one too many\n"
	if got := out.String(); err != nil || got != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}
