package app

import (
	"testing"
	"time"

	"fairlead.dev/services/xds-server/internal/serve"
)

// A stream lives for its age and a tenth; a connection asked to end gives it more than that.
func TestConnectionsOutliveTheirStreams(t *testing.T) {
	for _, age := range []time.Duration{time.Minute, serve.DefaultMaxStreamAge, 24 * time.Hour} {
		s := &Server{cfg: &config{}}
		s.cfg.MaxConnectionAge = age
		if _, grace := s.connectionAge(); grace <= age+age/10 {
			t.Errorf("streams of %s are cut after %s", age, grace)
		}
	}
	s := &Server{cfg: &config{}}
	s.cfg.MaxConnectionAge = -1
	if age, _ := s.connectionAge(); age >= 0 {
		t.Errorf("streams that are to live for ever are cut after %s", age)
	}
}
