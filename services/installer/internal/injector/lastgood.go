package injector

import (
	"encoding/json"
	"os"
	"path/filepath"

	"fairlead.dev/pkg/fileio"
)

// lastGoodFile has the texts of the configuration that was in force last. They are no secret.
const lastGoodFile = "last-good.json"

// texts are what a configuration is made of.
type texts struct {
	Origin string `json:"origin"`
	Config string `json:"config"`
	Values string `json:"values"`
	Mesh   string `json:"mesh"`
}

// save keeps the texts for the next start of the process.
func (s *settings) save(t texts) {
	if s.cfg.StateDir == "" {
		return
	}
	text, err := json.Marshal(t)
	if err == nil {
		err = fileio.Write(filepath.Join(s.cfg.StateDir, lastGoodFile), text, 0o600)
	}
	if err != nil {
		s.cfg.Log.Warn("the configuration in force is not kept for a restart", "error", err)
	}
}

// restore puts what save has kept in force, so that a broken ConfigMap and a restart do not come together.
func (s *settings) restore() {
	if s.cfg.StateDir == "" {
		return
	}
	text, err := os.ReadFile(filepath.Join(s.cfg.StateDir, lastGoodFile))
	if err != nil {
		return // there is none
	}
	var t texts
	err = json.Unmarshal(text, &t)
	if err == nil {
		err = s.putInForce(t)
	}
	if err != nil {
		s.cfg.Log.Warn("the configuration of an earlier run is of no use", "error", err)
	}
}
