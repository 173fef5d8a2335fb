package serve

import (
	"strings"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// healthType is the type of the requests by which agents tell the health of their workload, as Istio's do: a request
// with an error detail says that the workload is not well. They are not answered.
const healthType = "type.googleapis.com/istio.v1.HealthInformation"

// maxHealthMessage bounds the reason that is passed on to config-watcher.
const maxHealthMessage = 1 << 10

// noteUnserved takes over what a request of a type that no translator makes tells. The caller holds mu.
func (st *stream) noteUnserved(typeURL string, detail *rpcstatus.Status) {
	if typeURL != healthType || st.node == nil {
		return
	}
	message := detail.GetMessage()
	message = strings.Clone(strings.ToValidUTF8(message[:min(len(message), maxHealthMessage)], "")) // the rest is not kept
	if h := st.health; h != nil && h.GetHealthy() == (detail == nil) && h.GetMessage() == message {
		return
	}
	st.health = &configv1.WorkloadHealth{Healthy: detail == nil, Message: message, ToldAt: timestamppb.New(st.server.clock.Now())}
	st.server.reports.markChanged(st)
}

// workloadHealth is what config-watcher is told: of a workload that the proxy's identity is proven to own, what its
// agent has said; else nil. The caller holds mu.
func (st *stream) workloadHealth() *configv1.WorkloadHealth {
	if st.health == nil || !st.verified {
		return nil
	}
	return &configv1.WorkloadHealth{Workload: st.workload, Healthy: st.health.GetHealthy(), Message: st.health.GetMessage(),
		ToldAt: st.health.GetToldAt()}
}
