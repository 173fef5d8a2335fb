package app

import (
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

// buildRegistration makes the table of the machines that register themselves. WorkloadGroups of the API server get
// their entries there, all others in the store. buildStatus adds the proxies of other replicas.
func (s *Server) buildRegistration() error {
	cfg := registration.Config{
		Fleet: s.fleet, Controller: registrationController(s.cfg.IstioRevision), Fallback: registration.StoreWriter{Store: s.store},
		Writers: map[string]registration.Writer{}, Clock: s.Clock, Log: s.Log,
		Synced: func() bool {
			snapshot, _ := s.revisions.Current()
			return snapshot != nil
		},
		Peers: s.registering,
	}
	if s.kubernetes != nil {
		w, err := registration.NewKubernetesWriter(s.kubernetes.API())
		if err != nil {
			return err
		}
		s.registrar = w
		cfg.Writers[s.kubernetes.Name()] = w
	}
	s.registration = registration.NewTable(cfg)
	s.Task("registration of workloads", s.registration.Run)
	return nil
}
