package serve

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// status describes the stream; nil before it has sent its node.
func (st *stream) status() *configv1.ProxyStatus {
	st.lock()
	defer st.unlock()
	if st.closed || st.class == nil {
		return nil
	}
	types, acked, settled := st.client.Status()
	return &configv1.ProxyStatus{
		NodeId: st.node.ID, Namespace: st.node.Namespace, Workload: st.node.Name, Class: st.class.ID(), ProxyVersion: st.node.Version,
		AgentVersion: st.node.AgentVersion, Revision: st.node.Revision,
		XdsServer: st.server.instance, ConnectedAt: timestamppb.New(st.connectedAt),
		Identity: st.node.Identity, Unverified: !st.verified, Health: st.workloadHealth(), Registration: st.registration(),
		Types: types, Acked: acked, Settled: settled,
	}
}
