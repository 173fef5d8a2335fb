// Command hello is what the tests put into an image.
package main

import "fmt"

func main() { fmt.Println("hello from the image") }
