package app

import (
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/registration"
)

// registrationController is the annotation istio.io/workloadController of the WorkloadEntries that a control plane of
// this revision makes.
func registrationController(revision string) string {
	if revision == "" {
		return "fairlead-config-watcher"
	}
	return "fairlead-config-watcher-" + revision
}

// newRegistration makes the table of the machines that register themselves. WorkloadGroups of the API server get their
// entries there, by registrar, which is nil without --kubernetes; all others in the store.
func (s *Server) newRegistration(
	proxies *fleet.Table, others replicas, from *sources,
) (table *registration.Table, registrar *registration.KubernetesWriter, err error) {
	cfg := registration.Config{
		Fleet: proxies, Controller: registrationController(s.cfg.IstioRevision), Fallback: registration.StoreWriter{Store: from.store},
		Writers: map[string]registration.Writer{}, Clock: s.Clock, Log: s.Log,
		Synced: func() bool {
			snapshot, _ := s.revisions.Current()
			return snapshot != nil
		},
		Peers: others.registering,
	}
	if from.kubernetes != nil {
		if registrar, err = registration.NewKubernetesWriter(from.kubernetes.API()); err != nil {
			return nil, nil, err
		}
		cfg.Writers[from.kubernetes.Name()] = registrar
	}
	table = registration.NewTable(cfg)
	s.Task("registration of workloads", table.Run)
	return table, registrar, nil
}
