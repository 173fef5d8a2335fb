package cacerts

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Config of the plugged-in CA.
type Config struct {
	// Directory is where a Secret is mounted, or a directory of a machine. It is read again whenever it changes.
	//
	// A Secret that Kubernetes mounts may have any mode: the kubelet's default is 0644, with fsGroup the group may read
	// besides, and only the containers of the Pod see the files. In other directories the key is refused if others than
	// the ca can read it: 0600 if it belongs to the ca's user, 0640 with the ca's group if it belongs to another, such
	// as root.
	Directory string `json:"directory"`
}

// Check returns what is wrong with the Config. It reads no file.
func (c *Config) Check() error {
	switch {
	case c.Directory == "":
		return errors.New("directory: is required; name the directory that the Secret cacerts is mounted at")
	case !filepath.IsAbs(c.Directory):
		return fmt.Errorf("directory: %q is a relative path, and depends on where the ca was started; write it from / on", c.Directory)
	}
	return nil
}
