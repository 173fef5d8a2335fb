package objectfile

import "os"

// ReadFileOrPipe reads a file, or a pipe that a shell has opened, as in -f <(helm template .).
func ReadFileOrPipe(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return ReadFile(path)
	}
	return ReadAnyFile(path)
}

// ReadAnyFile reads a file of any kind, pipes included, up to MaxFileBytes.
func ReadAnyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(path, f)
}
