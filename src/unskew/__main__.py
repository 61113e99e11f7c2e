from unskew.cli import main

main()
